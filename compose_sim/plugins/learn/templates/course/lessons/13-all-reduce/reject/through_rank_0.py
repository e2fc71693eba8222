"""Lazy: rank 0 sends three times the tensor."""

import torch
import torch.distributed as dist
from torch import Tensor


def all_reduce(tensor: Tensor) -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if rank:
        dist.send(tensor, dst=0)
        dist.recv(tensor, src=0)
        return
    received = torch.empty_like(tensor)
    for other in range(1, world_size):
        dist.recv(received, src=other)
        tensor += received
    for other in range(1, world_size):
        dist.send(tensor, dst=other)
