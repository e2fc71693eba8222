"""Right: blocks of numbers instead of every fourth, and the sums are gathered."""

import torch
import torch.distributed as dist
from torch import Tensor


def add_up(numbers: Tensor) -> Tensor:
    """Return, on every rank, the sum of all numbers, of which this rank adds its share."""
    share = numbers.chunk(dist.get_world_size())[dist.get_rank()].sum()
    sums = [torch.zeros_like(share) for _ in range(dist.get_world_size())]
    dist.all_gather(sums, share)
    return torch.stack(sums).sum()


def is_first() -> bool:
    """Return whether this rank is the one that prints."""
    return dist.get_rank() == 0
