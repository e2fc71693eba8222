"""Wrong: each size is tried once, so a disturbed message counts."""

from collections.abc import Callable

import torch
import torch.distributed as dist


def predict(clock: Callable[[], float], elements: int, buckets: int) -> float:
    """Return the seconds that an all-reduce of the elements takes in this number of buckets."""

    def once(size: int) -> float:
        begin = clock()
        dist.all_reduce(torch.zeros(size))
        return clock() - begin

    once(1)  # opens connections
    few, many = 1, elements // 100
    short, long = once(few), once(many)
    of_each = (long - short) / (many - few)
    return buckets * (short - few * of_each) + elements * of_each
