"""Name what a run is doing: the phase of each node, what the run waits for until it trains, and where the time of a command went."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from compose_sim.core.events.events import Event
from compose_sim.core.state.fault_attribution import active_faults
from compose_sim.core.state.state import ClusterState

ABSENT = "absent"
# The phase of a node under a fault that was not healed. Other faults do not change the phase.
_HELD = {"pause": "paused", "stop": "stopped", "isolate": "isolated", "partition": "partitioned"}
_ENDED = {"kill": "killed", "term": "stopped"}


def phase_of(state: ClusterState, name: str) -> str:
    """Return one word: `running`, `paused`, `killed`, `absent`, …."""
    node = state.nodes[name]
    for fault in reversed(active_faults(state)):
        if name not in (*fault.nodes, *fault.loses):
            continue
        if fault.kind in _HELD and node.phase != "exited":
            return _HELD[fault.kind]
        if fault.kind in _ENDED and node.is_gone:
            return _ENDED[fault.kind]
    return ABSENT if name not in state.wanted and node.phase in ("creating", "exited", "ended", "lost") else node.phase


def wished(state: ClusterState) -> dict[str, str]:
    """Return the phase of each node whose phase comes from a fault or from scaling."""
    phases = {name: phase_of(state, name) for name in state.nodes}
    return {name: phase for name, phase in phases.items() if phase != state.nodes[name].phase}


_MAX_NAMES = 4  # names


def awaited(state: ClusterState, *, is_command: bool = False) -> str:
    """
    Return `node-2 and node-3 to start`, `rank 0, which has not imported torch`, …; "" once ranks train, or the run is ending.

    Nothing is known about a command except that it runs, and of a script not whether it will ever train.
    """
    if state.first_step_at or state.stopping or state.failures or any(rank.has_left for rank in state.ranks.values()):
        return ""
    nodes = [name for name in state.wanted if state.nodes[name].phase == "creating"]
    if nodes:
        return f"{_named(nodes)} to start"
    if state.driver:
        return "" if state.driver.ready_at else "the framework to report that all nodes are there"
    if state.rendezvous_at is None:
        return f"the rendezvous of {len(state.wanted)} nodes" if len(state.wanted) > 1 else "the rendezvous"
    if is_command:
        return ""
    starting, joining = (
        [f"rank {rank.rank}" for rank in state.ranks.values() if rank.phase == phase] for phase in ("starting", "init")
    )
    if starting and state.versions:
        return f"{_named(starting)} to join a process group or take a step"
    if starting:
        return f"{_named(starting)}, which {'has' if len(starting) == 1 else 'have'} not imported torch"
    return f"{_named(joining)} to join the process group" if joining else "the first step"


def pace(state: ClusterState) -> float | None:
    """Return the steps per second since the first step of this round; None before there are two."""
    began = state.rounds[-1].first_step_at if state.rounds else None
    steps = max((rank.step or 0 for rank in state.ranks.values()), default=0)
    return (steps - 1) / (state.last_t - began) if began and steps > 1 and state.last_t > began else None


def _named(names: list[str]) -> str:
    shown = names if len(names) <= _MAX_NAMES else [*names[: _MAX_NAMES - 1], f"{len(names) - _MAX_NAMES + 1} more"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


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
