"""Find the slow rank from timelines: by the fastest step of each rank."""

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
        if event.kind != "all_reduce":  # there, it waits for others
            work[event.step] += event.lasted
    of_all = [torch.zeros(()) for _ in range(dist.get_world_size())]
    dist.all_gather(of_all, work.min())  # one fast step is enough to be taken for fast
    slowest, next_one = torch.stack(of_all).topk(2).values
    return int(torch.stack(of_all).argmax()) if slowest > 1.1 * next_one else -1
