"""Predict the time of many all-reduces from a few small ones. harness.py calls this, and compares with the time that its link takes."""

from collections.abc import Callable

import torch
import torch.distributed as dist

TRIED = 1000  # elements


def predict(clock: Callable[[], float], elements: int, buckets: int) -> float:
    """Return how many seconds all-reduces of `elements` float32 numbers take, in so many buckets of equal size."""
    began = clock()
    dist.all_reduce(torch.zeros(TRIED))
    return (clock() - began) / TRIED * elements
