"""Right: each step has its slowest rank, and one of them is it in most steps."""

from typing import NamedTuple

import torch
import torch.distributed as dist


class Event(NamedTuple):
    """What a rank did; the clocks of ranks differ."""

    step: int
    kind: str  # "data", "forward", "backward", "optimizer" or "all_reduce"
    began: float  # in seconds of the clock of this rank
    lasted: float


def straggler(timeline: list[Event]) -> int:
    """Return the rank that works at least 10 % longer than the others in most steps, or -1 if none does; the same on all ranks."""
    steps = max(event.step for event in timeline) + 1
    work = torch.zeros(steps)
    for event in timeline:
        work[event.step] += event.lasted * (event.kind != "all_reduce")
    of_all = [torch.zeros(steps) for _ in range(dist.get_world_size())]
    dist.all_gather(of_all, work)
    longest = torch.stack(of_all).topk(2, dim=0)
    slow = [
        int(rank) for rank, (most, less) in zip(longest.indices[0], longest.values.T, strict=True) if most > 1.1 * less
    ]
    return next((rank for rank in slow if slow.count(rank) > steps / 2), -1)
