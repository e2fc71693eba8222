"""Put the profiles that torch.profiler made on each rank into the timeline of the run.

A time in such a profile is microseconds since `baseTimeNanoseconds`, in Unix time. All ranks of a run share one clock, so nothing
has to be estimated. Ranks write these files: what is no event of a trace is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_PHASES = frozenset("XBEiICbensft")  # besides M
_NUMBERED, _MOST_IDS = frozenset("stfben"), 10_000_000  # flows and asynchronous events, of one rank
_NAMED = ("process_name", "process_labels", "thread_name")


@dataclass(frozen=True, slots=True)
class Profile:
    """What torch.profiler wrote on one rank, as JSON values; `lag` is how far the machine's clock was ahead of the run's."""

    rank: int
    node: str
    content: Any
    lag: float = 0.0


def profile_events(profile: Profile, *, started_at: float, first_pid: int, sort_index: int) -> list[dict[str, Any]]:
    """Return the events in microseconds since the start of the run, each process of the rank with an own number."""
    content = profile.content if isinstance(profile.content, Mapping) else {}
    base = content.get("baseTimeNanoseconds", 0)
    base = base if isinstance(base, int) and not isinstance(base, bool) else 0
    shift = (base - round((started_at + profile.lag) * 1e9)) / 1000
    pids: dict[int, int] = {}
    ids: dict[str, int] = {}
    names: dict[int, dict[str, str]] = {}
    events: list[dict[str, Any]] = []
    for event in _valid(content.get("traceEvents")):
        pid = pids.setdefault(event["pid"], first_pid + len(pids))
        if event["ph"] == "M":
            if event["name"] == "thread_name":
                events.append({**event, "pid": pid})
            else:
                names.setdefault(pid, {})[event["name"]] = str(next(iter(event["args"].values())))
            continue
        made = {
            **event,
            "pid": pid,
            "ts": event["ts"] + shift,
            **({"dur": event.get("dur", 0)} if event["ph"] == "X" else {}),
        }
        if event["ph"] in _NUMBERED:  # those of two ranks must not meet, and Perfetto takes only numbers
            made["id"] = profile.rank * _MOST_IDS + ids.setdefault(str(event.get("id")), len(ids) % _MOST_IDS)
        events.append(made)
    used = {event["pid"] for event in events}
    for index, pid in enumerate(sorted(used)):
        name = names.get(pid, {})
        words = f"rank {profile.rank} {name.get('process_labels') or name.get('process_name') or 'process'}"
        about = {"ph": "M", "pid": pid, "tid": 0}
        events.append({**about, "name": "process_name", "args": {"name": f"{profile.node}: {words}"}})
        events.append({**about, "name": "process_sort_index", "args": {"sort_index": sort_index + index}})
    return events


def _valid(events: Any) -> Iterator[dict[str, Any]]:
    for event in events if isinstance(events, list) else ():
        if not isinstance(event, dict) or not all(_is_number(event.get(name)) for name in ("pid", "tid")):
            continue
        phase, name, values = event.get("ph"), event.get("name"), event.get("args", {})
        if phase == "M":
            if name in _NAMED and isinstance(values, dict) and values:
                yield event
        elif phase in _PHASES and _is_finite(event.get("ts")) and _is_finite(event.get("dur", 0)):
            yield event


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 53


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and abs(value) < 1e18
