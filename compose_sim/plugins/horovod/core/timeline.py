"""Break down the time of a Horovod run into computing, reducing and idling, from Horovod's timeline.

The timeline is a list of trace events in microseconds with one `pid` per tensor. NEGOTIATE_ALLREDUCE lasts from the first rank that
is ready to the last, with a mark named after each; ALLREDUCE follows. A rank computes until it is ready. Once it has handed in every
tensor that it has, it is idle until their reduction begins. Copies into the fusion buffer count as reducing.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from compose_sim.core.report.report import HorovodTimeline

_NEGOTIATE = "NEGOTIATE_"
_MICROSECONDS = 1e6
_MAX_MICROSECONDS = 1e18
_RANK = re.compile("[0-9]{1,5}")
Interval = tuple[float, float]


@dataclass(slots=True)
class _Tensor:
    """A tensor from the start of negotiation to the end of reduction."""

    ready: dict[int, float]  # the time at which each rank was ready
    depth: int = 0  # activities that are open
    begun: float | None = None
    negotiates: bool = True


def parse_timeline(text: str, *, file: str) -> HorovodTimeline | None:
    """Return what a timeline shows, even if the end was never written; None if no rank was ready for any reduction."""
    reductions, busy = _read(_events_of(text))
    ranks = sorted(busy)
    if not reductions or not ranks:
        return None
    reducing = _merged(reductions)
    begin = min(start for periods in busy.values() for start, _, _ in periods)
    total = max(end for _, end in reducing) - begin
    if total <= 0:
        return None
    all_reduce = _length(reducing) / total
    idle = [_idle(busy[rank], reducing) / total for rank in ranks]
    mean = sum(idle) / len(idle)
    return HorovodTimeline(
        file=file,
        seconds=round(total / _MICROSECONDS, 4),
        compute=round(max(0.0, 1.0 - all_reduce - mean), 4),
        all_reduce=round(all_reduce, 4),
        idle=round(mean, 4),
        idle_by_rank=tuple(round(share, 4) for share in idle),
    )


def _events_of(text: str) -> Iterator[dict[str, Any]]:
    """Yield the events of a timeline, some on each line; a rank may have written anything."""
    for line in text.splitlines():
        try:
            events = json.loads(f"[{line.strip('[], ')}]")
        except (ValueError, RecursionError):
            continue
        for event in events:
            at = event.get("ts") if isinstance(event, dict) else None
            if isinstance(at, int | float) and abs(at) < _MAX_MICROSECONDS and isinstance(event.get("pid"), int):
                yield event


def _read(events: Iterable[Mapping[str, Any]]) -> tuple[list[Interval], dict[int, list[tuple[float, float, float]]]]:
    """Return the periods of reductions and, for each rank, (ready, reduction begins, ends) of each tensor."""
    tensors: dict[Any, _Tensor] = {}
    reductions: list[Interval] = []
    busy: dict[int, list[tuple[float, float, float]]] = {}
    for event in events:
        phase, pid, name, at = event.get("ph"), event["pid"], event.get("name"), event["ts"]
        tensor = tensors.get(pid)
        if phase == "B" and str(name).startswith(_NEGOTIATE):
            tensors[pid] = _Tensor(ready={})
        elif tensor is None:
            continue
        elif phase == "X" and tensor.negotiates and _RANK.fullmatch(str(name)):
            tensor.ready[int(str(name))] = at
        elif phase == "B":
            tensor.depth += 1
            tensor.begun = at if tensor.begun is None else tensor.begun
        elif phase == "E" and tensor.negotiates:
            tensor.negotiates = False
        elif phase == "E":
            tensor.depth -= 1
            if tensor.depth == 0 and tensor.begun is not None:
                reductions.append((tensor.begun, at))
                for rank, ready in tensor.ready.items():
                    busy.setdefault(rank, []).append((ready, tensor.begun, at))
                del tensors[pid]
    return reductions, busy


def _idle(tensors: list[tuple[float, float, float]], reducing: list[Interval]) -> float:
    """Return how long a rank had handed in all of its tensors while nothing was being reduced."""
    idle = 0.0
    last_ready = end = float("-inf")
    for ready, _, ends in [*sorted(tensors), (float("inf"),) * 3]:
        if ready > end:  # all that was handed in has been reduced
            idle += end - last_ready - _length(_within(reducing, last_ready, end)) if end > last_ready else 0.0
            end = float("-inf")
        last_ready, end = ready, max(end, ends)
    return idle


def _within(intervals: list[Interval], begin: float, end: float) -> list[Interval]:
    """Return the parts of sorted, disjoint intervals that lie between two moments."""
    first = max(0, bisect_left(intervals, (begin,)) - 1)
    last = bisect_left(intervals, (end,))
    return [(max(begin, start), min(end, stop)) for start, stop in intervals[first:last] if stop > begin]


def _merged(intervals: list[Interval]) -> list[Interval]:
    merged: list[Interval] = []
    for begin, end in sorted(intervals):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def _length(intervals: list[Interval]) -> float:
    return sum(end - begin for begin, end in intervals)
