"""What did the ranks of a Horovod run do with their time? Its timeline says when each was ready for a reduction, and when that ran.

The timeline is a list of trace events, microseconds, one `pid` a tensor: NEGOTIATE_ALLREDUCE lasts from the first rank that is ready
to the last, with a mark named after each; ALLREDUCE follows. What a rank does until it is ready is computing. When it has handed in
all that it has, it is idle until the reduction of that begins. Copies into the fusion buffer count as reducing.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from compose_sim.core.units import format_seconds

_NEGOTIATE = "NEGOTIATE_"
_MICROSECONDS = 1e6
Interval = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Of the seconds from the first reduction to the last, what part went where: means over the ranks, which add up to 1."""

    seconds: float
    compute: float
    all_reduce: float
    idle: float
    idle_by_rank: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {name: _rounded(value) for name, value in asdict(self).items()}


@dataclass(slots=True)
class _Tensor:
    """One tensor between its negotiation and the end of its reduction."""

    ready: dict[int, float]  # when, by rank
    depth: int = 0  # activities that are open
    begun: float | None = None
    negotiates: bool = True


def parse_timeline(text: str) -> list[dict[str, Any]]:
    """The events of a timeline, also of one whose end was never written; none where it is not one."""
    body = text.strip()
    if not body.endswith("]"):
        body = body[: body.rfind("}") + 1] + "]"
    try:
        events = json.loads(body)
    except ValueError:
        return []
    return [event for event in events if isinstance(event, dict)] if isinstance(events, list) else []


def shares_of(events: Iterable[Mapping[str, Any]]) -> Shares | None:
    """What the time went into; None where the timeline shows no rank that was ready for anything."""
    reductions, busy = _read(events)
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
    return Shares(
        seconds=total / _MICROSECONDS,
        compute=max(0.0, 1.0 - all_reduce - mean),
        all_reduce=all_reduce,
        idle=mean,
        idle_by_rank=tuple(idle),
    )


def trace_words(shares: Mapping[str, Any]) -> str:
    """`12.3 s: compute 61 %, all-reduce 27 %, idle 12 %; …`: the report's value on one line."""
    parts = (("compute", "compute"), ("all-reduce", "all_reduce"), ("idle", "idle"))
    words = ", ".join(f"{name} {shares[key]:.0%}".replace("%", " %") for name, key in parts)
    by_rank = shares["idle_by_rank"]
    least, most = min(by_rank), max(by_rank)
    slowest = f"; the others wait for rank {by_rank.index(least)}" if most - least > 0.1 else ""
    return f"{format_seconds(shares['seconds'])}: {words}{slowest}"


def _read(events: Iterable[Mapping[str, Any]]) -> tuple[list[Interval], dict[int, list[tuple[float, float, float]]]]:
    """When anything was reduced, and for each rank (ready, reduction begins, ends) of each tensor."""
    tensors: dict[Any, _Tensor] = {}
    reductions: list[Interval] = []
    busy: dict[int, list[tuple[float, float, float]]] = {}
    for event in events:
        phase, pid, name, at = (event.get(key) for key in ("ph", "pid", "name", "ts"))
        if not isinstance(at, int | float):
            continue
        tensor = tensors.get(pid)
        if phase == "B" and str(name).startswith(_NEGOTIATE):
            tensors[pid] = _Tensor(ready={})
        elif tensor is None:
            continue
        elif phase == "X" and tensor.negotiates and str(name).isdigit():
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
    """How long a rank had handed in all that it had, and nothing was reduced."""
    idle = 0.0
    last_ready = end = float("-inf")
    for ready, _, ends in [*sorted(tensors), (float("inf"),) * 3]:
        if ready > end:  # all that was handed in has been reduced
            idle += end - last_ready - _length(_within(reducing, last_ready, end)) if end > last_ready else 0.0
            end = float("-inf")
        last_ready, end = ready, max(end, ends)
    return idle


def _within(intervals: list[Interval], begin: float, end: float) -> list[Interval]:
    """The parts of sorted intervals, none of which meet, that lie between two moments."""
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


def _rounded(value: Any) -> Any:
    return [round(each, 4) for each in value] if isinstance(value, tuple) else round(value, 4)
