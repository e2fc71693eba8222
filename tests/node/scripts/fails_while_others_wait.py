"""Rank 1 raises; the others wait for it in a collective."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
if dist.get_rank() == 1:
    raise RuntimeError("rank 1 fails")
# Unlike gloo, the store does not report that a peer has gone.
dist.distributed_c10d._get_default_store().wait(["never"])
