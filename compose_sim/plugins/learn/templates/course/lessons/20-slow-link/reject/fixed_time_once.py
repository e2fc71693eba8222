"""Wrong: the fixed time counts once, not for each bucket."""

from collections.abc import Callable

import torch
import torch.distributed as dist

SMALL, LARGE = 1, 5000  # elements


def predict(clock: Callable[[], float], elements: int, buckets: int) -> float:
    """Return how many seconds all-reduces of `elements` float32 numbers take, in so many buckets of equal size."""
    dist.all_reduce(torch.zeros(SMALL))  # opens the connections
    small, large = undisturbed(clock, SMALL), undisturbed(clock, LARGE)
    beta = (large - small) / (LARGE - SMALL)
    alpha = small - SMALL * beta
    return alpha + elements * beta


def undisturbed(clock: Callable[[], float], elements: int) -> float:
    """Return the shortest of several times: what disturbs a message only makes it longer."""
    times = []
    for _ in range(10):
        began = clock()
        dist.all_reduce(torch.zeros(elements))
        times.append(clock() - began)
    return min(times)
