"""Raise on rank 1 between two collectives; the other ranks fail as a consequence."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(5):
    dist.all_reduce(torch.ones(4))
    if step == 3 and dist.get_rank() == 1:
        raise ValueError("sample 17 is broken")
