"""Right: the times in all-reduces of the same step differ by what others work longer."""

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
    work: dict[int, float] = {}
    waits: dict[int, float] = {}
    for event in timeline:
        kept = waits if event.kind == "all_reduce" else work
        kept[event.step] = kept.get(event.step, 0.0) + event.lasted
    own = torch.tensor([[waits[step], work[step]] for step in sorted(work)])
    of_all = [torch.zeros_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(of_all, own)
    both = torch.stack(of_all)  # rank, step, wait and work
    shortest = both[..., 0].median(dim=1).values.argmin()
    others = both[torch.arange(len(both)) != shortest][..., 1].max(dim=0).values
    ratio = (both[shortest, :, 1] / others).median()
    return int(shortest) if ratio > 1.1 else -1
