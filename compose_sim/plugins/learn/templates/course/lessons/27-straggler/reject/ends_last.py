"""Wrong: compares moments of clocks that differ."""

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
    begins = torch.zeros(steps)
    for event in timeline:
        if event.kind == "all_reduce":
            begins[event.step] = event.began
    of_all = [torch.zeros(steps) for _ in range(dist.get_world_size())]
    dist.all_gather(of_all, begins)
    return int(torch.stack(of_all).argmax(dim=0).mode().values)
