"""Lazy: no prediction. All buckets are sent, which takes as long as what was to be predicted."""

from collections.abc import Callable

import torch
import torch.distributed as dist


def predict(clock: Callable[[], float], elements: int, buckets: int) -> float:
    """Return how many seconds all-reduces of `elements` float32 numbers take, in so many buckets of equal size."""
    dist.all_reduce(torch.zeros(1))
    times = []
    for _ in range(10):
        began = clock()
        for _ in range(buckets):
            dist.all_reduce(torch.zeros(elements // buckets))
        times.append(clock() - began)
    return min(times)
