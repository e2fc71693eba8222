"""Divide the time of one command into phases: from the start of the process until its nodes are gone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from compose_sim.core.events.events import Event

# What the last event of a kind ends. A round is complete when its last node knows.
_ENDED_BY_LAST = {
    "node-started": "nodes start",
    "rendezvous": "rendezvous",
    "rank-started": "ranks start, with torch",
    "script-ended": "steps",
    "rank-exited": "ranks exit",
    "node-stopped": "nodes stop",
}
_ENDED_BY_FIRST = {"step": "script until the first step"}


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the time that a command took; `ended_at` in seconds since the command started."""

    name: str
    seconds: float
    ended_at: float


def phases_of(started_at: float, marks: Mapping[str, float], events: Iterable[Event]) -> Sequence[Phase]:
    """
    Return the phases in order of time. A phase lasts from the end of the one before.

    `marks` names the phases that end outside of nodes, with their ends in Unix seconds, as in events. Phases that did not end
    are not listed, nor are rounds after the first.
    """
    ends = dict(marks)
    for event in sorted(events, key=lambda event: event.t):
        if event.generation in (None, 0):
            if name := _ENDED_BY_LAST.get(event.kind):
                ends[name] = event.t
            if name := _ENDED_BY_FIRST.get(event.kind):
                ends.setdefault(name, event.t)
    phases, before = [], started_at
    for name, end in sorted(ends.items(), key=lambda item: item[1]):
        phases.append(Phase(name, end - before, end - started_at))
        before = end
    return phases
