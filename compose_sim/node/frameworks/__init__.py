"""Start frameworks other than torch: Horovod, Ray, PaddlePaddle."""
