"""Skip one all-reduce on rank 2, so that it waits in the barrier while the others wait in the all-reduce."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(5):
    if step == 3 and dist.get_rank() == 2:
        continue
    dist.all_reduce(torch.ones(4))
dist.barrier()
