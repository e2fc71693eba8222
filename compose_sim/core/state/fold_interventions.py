"""Fold the events of interventions into the state: faults, heals, links, scaling and recoveries."""

from __future__ import annotations

from dataclasses import replace

from compose_sim.core.events.events import Event
from compose_sim.core.faults.record import FaultRecord, record_of_event
from compose_sim.core.state.state import ClusterState, Recovery


def _on_fault(state: ClusterState, event: Event) -> ClusterState:
    """`begun` is written just before the first action, `done` after the last."""
    fault = record_of_event(event)
    known = state.faults.get(fault.id)
    if known:
        done_at = event.t if event.data.get("phase") == "done" else known.done_at
        fault = replace(known, begun_at=min(known.begun_at, event.t), done_at=done_at)
    return _with_fault(state, fault)


def _on_heal(state: ClusterState, event: Event) -> ClusterState:
    fault = state.faults.get(str(event.data.get("id", "")))
    if not fault:
        return state
    done = event.data.get("phase") == "done"
    begun_at = event.t if fault.heal_begun_at is None else min(fault.heal_begun_at, event.t)
    return _with_fault(state, replace(fault, heal_begun_at=begun_at, healed_at=event.t if done else fault.healed_at))


def _with_fault(state: ClusterState, fault: FaultRecord) -> ClusterState:
    return replace(state, faults={**state.faults, fault.id: fault})


def _on_refused(state: ClusterState, event: Event) -> ClusterState:
    """Forget the fault: it was rolled back."""
    faults = {name: fault for name, fault in state.faults.items() if name != event.data.get("id")}
    return replace(state, faults=faults)


def _on_link(state: ClusterState, event: Event) -> ClusterState:
    return replace(state, links=tuple(event.data.get("links") or ()))


def _on_scale(state: ClusterState, event: Event) -> ClusterState:
    return replace(state, wanted=tuple(event.data.get("names") or ()), wanted_at=event.t)


def _on_recovered(state: ClusterState, event: Event) -> ClusterState:
    data = event.data
    recovery = Recovery(
        fault=data.get("id"),
        cause=str(data.get("cause", "")),
        seconds=float(data.get("seconds") or 0.0),
        world_size=int(data.get("world_size") or 0),
        steps_lost=data.get("steps_lost"),
        generation=data.get("generation"),
    )
    return replace(state, recoveries=(*state.recoveries, recovery))


HANDLERS = {
    "fault": _on_fault,
    "heal": _on_heal,
    "refused": _on_refused,
    "link": _on_link,
    "scale": _on_scale,
    "recovered": _on_recovered,
}
