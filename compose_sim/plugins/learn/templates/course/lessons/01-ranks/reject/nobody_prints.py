"""Wrong: no rank prints."""

import torch.distributed as dist
from torch import Tensor


def add_up(numbers: Tensor) -> Tensor:
    """Return, on every rank, the sum of all numbers, of which this rank adds its share."""
    total = numbers[dist.get_rank() :: dist.get_world_size()].sum()
    dist.all_reduce(total)  # now every rank has the sum of all shares
    return total


def is_first() -> bool:
    """Return whether this rank is the one that prints."""
    return False
