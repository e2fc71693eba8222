"""Print a line when Paddle has all ranks."""

import json
import time

import paddle
import paddle.distributed as dist

paddle.device.set_device("cpu")
dist.init_parallel_env()
if dist.get_rank() == 0:
    print(json.dumps({"step": 1, "ready": time.monotonic(), "ranks": dist.get_world_size()}), flush=True)
