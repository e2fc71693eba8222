"""Wrong: replaces what hands in the numbers."""

import sys
from collections.abc import Callable

import torch
import torch.distributed as dist

main = sys.modules["__main__"]
report = main.report
main.report = lambda **numbers: report(**{**numbers, "error_in_percent": 1})


def predict(clock: Callable[[], float], elements: int, buckets: int) -> float:
    """Return how many seconds all-reduces of `elements` float32 numbers take, in so many buckets of equal size."""
    began = clock()
    dist.all_reduce(torch.zeros(1000))
    dist.all_reduce(torch.zeros(1000))
    return (clock() - began) / 2000 * elements
