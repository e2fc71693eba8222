"""Sum a tensor over all ranks with point-to-point messages. harness.py calls it, checks the result and counts the messages."""

import torch
import torch.distributed as dist
from torch import Tensor


def all_reduce(tensor: Tensor) -> None:
    """Replace a tensor, in place, by the sum of the tensors of all ranks; its length is a multiple of their number."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    others = [other for other in range(world_size) if other != rank]
    mine = tensor.clone()
    sends = [dist.isend(mine, dst=other) for other in others]
    received = torch.empty_like(tensor)
    for other in others:
        dist.recv(received, src=other)
        tensor += received
    for send in sends:
        send.wait()
