"""Right: the shortest of some all-reduces that are started together with others, of which there are none."""

from collections.abc import Callable

import torch
import torch.distributed as dist


def predict(clock: Callable[[], float], elements: int, buckets: int) -> float:
    """Return the seconds that an all-reduce of the elements takes in this number of buckets."""

    def shortest(size: int) -> float:
        times = []
        for _ in range(6):
            begin = clock()
            dist.all_reduce_coalesced([torch.zeros(size)])
            times.append(clock() - begin)
        return min(times)

    few, many = 1, elements // 200
    short, long = shortest(few), shortest(many)
    of_each = (long - short) / (many - few)
    return buckets * (short - few * of_each) + elements * of_each
