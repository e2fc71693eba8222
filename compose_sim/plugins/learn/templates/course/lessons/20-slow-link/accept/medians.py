"""Right: the medians of two sizes, of which the second is sent five times."""

from collections.abc import Callable
from statistics import median

import torch
import torch.distributed as dist


def predict(clock: Callable[[], float], elements: int, buckets: int) -> float:
    """Return how many seconds all-reduces of `elements` float32 numbers take, in so many buckets of equal size."""
    dist.all_reduce(torch.zeros(1))  # opens the connections
    many = elements // 100
    small = median(once(clock, 1) for _ in range(15))
    large = median(once(clock, many) for _ in range(5))
    beta = (large - small) / (many - 1)
    return buckets * (small - beta) + elements * beta


def once(clock: Callable[[], float], elements: int) -> float:
    began = clock()
    dist.all_reduce(torch.zeros(elements))
    return clock() - began
