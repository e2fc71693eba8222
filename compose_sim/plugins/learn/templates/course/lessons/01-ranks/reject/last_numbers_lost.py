"""Wrong: if the numbers cannot be divided by four, some are lost."""

import torch.distributed as dist
from torch import Tensor


def add_up(numbers: Tensor) -> Tensor:
    """Return, on every rank, the sum of all numbers, of which this rank adds its share."""
    total = numbers[: len(numbers) // 4 * 4].view(4, -1)[dist.get_rank()].sum()
    dist.all_reduce(total)  # now every rank has the sum of all shares
    return total


def is_first() -> bool:
    """Return whether this rank is the one that prints."""
    return dist.get_rank() == 0
