"""Lazy: two collectives that add up to one."""

import torch
import torch.distributed as dist
from torch import Tensor


def all_reduce(tensor: Tensor) -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    tensors = [torch.empty_like(tensor) for _ in range(world_size)] if rank == 0 else None
    dist.gather(tensor, tensors, dst=0)
    sums = [sum(tensors)] * world_size if rank == 0 else None
    dist.scatter(tensor, sums, src=0)
