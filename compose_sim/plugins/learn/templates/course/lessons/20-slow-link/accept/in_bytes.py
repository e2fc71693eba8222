"""Right: an empty message for the fixed time, and a rate in bytes per second."""

from collections.abc import Callable

import torch
import torch.distributed as dist

BYTES = 32_000


def predict(clock: Callable[[], float], elements: int, buckets: int) -> float:
    """Return how many seconds all-reduces of `elements` float32 numbers take, in so many buckets of equal size."""
    nothing, something = torch.zeros(1, dtype=torch.uint8), torch.zeros(BYTES, dtype=torch.uint8)
    times: dict[int, list[float]] = {1: [], BYTES: []}
    for _ in range(8):
        for tensor in (nothing, something):
            began = clock()
            dist.all_reduce(tensor)
            times[len(tensor)].append(clock() - began)
    alpha = min(times[1][1:])
    bytes_per_second = BYTES / (min(times[BYTES]) - alpha)
    return buckets * alpha + 4 * elements / bytes_per_second
