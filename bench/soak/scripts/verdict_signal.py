"""Kill rank 3 from outside Python, as the kernel does when memory is short; the other ranks fail as a consequence."""

import os
import signal

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(5):
    dist.all_reduce(torch.ones(4))
    if step == 3 and dist.get_rank() == 3:
        os.kill(os.getpid(), signal.SIGKILL)
