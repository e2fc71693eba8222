"""Two ranks of a node use the first GPU, because torch.cuda.set_device is missing: print NCCL's error as one line of JSON."""

import json
import os

import torch
import torch.distributed as dist

try:
    dist.init_process_group("nccl")
    dist.all_reduce(torch.ones(1, device="cuda:0"))
    torch.cuda.synchronize()
    found = ["", "nothing was raised"]
except Exception as error:
    found = [type(error).__name__, str(error)]
if os.environ["RANK"] == "0":
    print("BUGS " + json.dumps({"one_gpu_twice": found}), flush=True)
os._exit(0)  # a communicator that was never created may fail to shut down
