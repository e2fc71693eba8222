"""Plan a run of Horovod, and read its timeline."""
