"""Fold events into the state of a run, with one function per kind of event.

This module handles the events of the whole run, of its driver and of interventions; `fold_nodes` and `fold_ranks` handle the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, islice

from compose_sim.core.events.events import Event
from compose_sim.core.faults.record import FaultRecord, record_of_event
from compose_sim.core.plan.model import DRIVER, Plan
from compose_sim.core.state import fold_nodes, fold_ranks
from compose_sim.core.state.fold_ranks import new_numbers
from compose_sim.core.state.state import ClusterState, Failure, Recovery, initial_state, speaks_for_another

# When a line was printed is an estimate, and another one if the log is read again.
_OF_LINES = ("log", "metric", "numbers")
_MAX_NOTES, _LONGEST_NOTE = 40, 300
_MAX_VERSIONS = 100


def fold_all(plan: Plan, events: Iterable[Event]) -> ClusterState:
    """Return the last state of a run."""
    return fold_events(initial_state(plan), events)


def fold_events(state: ClusterState, events: Iterable[Event]) -> ClusterState:
    """Return the state after these events."""
    for batch in batches(events):
        state = fold_batch(state, batch)
    return state


def batches(events: Iterable[Event]) -> Iterator[list[Event]]:
    """
    Yield the events, without those of logs, in batches for `fold_batch`: successive lines with numbers of a rank, or one event.

    A rank may print thousands of such lines at a time; a batch of them changes the state once, not once for each line.
    """
    for are_lines, group in groupby((event for event in events if event.kind != "log"), key=_lines_of):
        batch = list(group)
        yield from [batch] if are_lines else ([event] for event in batch)


def fold_batch(state: ClusterState, batch: Sequence[Event]) -> ClusterState:
    """Return the state after a batch of `batches`."""
    first = batch[0]
    if not _lines_of(first):
        return fold(state, first)
    return state if speaks_for_another(state, first) else _FOLDS_OF_LINES[first.kind](state, batch)


def _lines_of(event: Event) -> tuple[str, str | None, int | None, int | None] | None:
    """Return what the events of successive lines with numbers have in common; None for any other event."""
    if event.kind in _FOLDS_OF_LINES and event.node != DRIVER:
        return event.kind, event.node, event.rank, event.generation
    return None


def fold(state: ClusterState, event: Event) -> ClusterState:
    """Return the state after one more event. Events of different nodes may arrive slightly out of order, and any may be missing."""
    if event.kind == "verdict":  # the report was made of what had been read; the master may end later
        return replace(state, is_judged=True, last_t=event.data.get("last_t") or state.last_t)
    if event.t > state.last_t and event.kind not in _OF_LINES and not state.is_judged:
        state = replace(state, last_t=event.t)
    handlers = _OF_DRIVER if event.node == DRIVER else _HANDLERS
    handler = handlers.get(event.kind)
    return handler(state, event) if handler and not speaks_for_another(state, event) else state


def _on_started(state: ClusterState, event: Event) -> ClusterState:
    host = {name: value for name, value in event.data.items() if name != "version"}
    return replace(state, started_at=event.t, host=host)


def _on_environment(state: ClusterState, event: Event) -> ClusterState:
    new = {name: version for name, version in event.data.items() if name not in state.versions}
    return replace(state, versions=dict(islice({**state.versions, **new}.items(), _MAX_VERSIONS)))


def _on_note(state: ClusterState, event: Event) -> ClusterState:
    message = str(event.data.get("message", ""))
    return state if message in state.notes else replace(state, notes=(*state.notes, message))


def _on_feature_off(state: ClusterState, event: Event) -> ClusterState:
    """Note what ranks cannot do with their torch; a script may have written the event, so there are not many of them."""
    first_line = str(event.data.get("message", "")).partition("\n")[0][:_LONGEST_NOTE]
    if len(state.notes) >= _MAX_NOTES or first_line in state.notes:
        return state
    return replace(state, notes=(*state.notes, first_line))


def _on_ended(state: ClusterState, event: Event) -> ClusterState:
    """Store how the master ended the run; a run that passed needs no reason."""
    passed = bool(event.data.get("passed"))
    reason = state.ended_because if passed else str(event.data.get("reason", ""))
    if state.driver:
        state = _on_driver_ended(state, event)
    return replace(state, outcome=passed, outcome_at=event.t, ended_because=reason)


def _on_stopping(state: ClusterState, event: Event) -> ClusterState:
    data = event.data
    is_explained = data.get("reason") == "engine" and state.stopping in _FROM_LOST_NODES
    if state.stopping and not is_explained:
        return state
    cause = _failure_of(event, str(data.get("cause", "engine"))) if data.get("message") else None
    return replace(state, stopping=str(data.get("reason", "")), stop_cause=cause)


def _failure_of(event: Event, kind: str) -> Failure:
    message, traceback = str(event.data.get("message", "")), str(event.data.get("traceback") or "")
    return Failure(t=event.t, kind=kind, node=event.node, rank=event.rank, message=message, traceback=traceback)


def _on_ready(state: ClusterState, event: Event) -> ClusterState:
    """The framework reports that all nodes are there."""
    if not state.driver or state.driver.ready_at is not None:
        return state
    return replace(state, driver=replace(state.driver, phase="running", ready_at=event.t, facts=event.data))


def _on_driver_ended(state: ClusterState, event: Event) -> ClusterState:
    """The master reports how the driver ended. If the driver raised an exception, that is the cause."""
    code = event.data.get("exit_code")
    if not state.driver or not isinstance(code, int):
        return state
    raised = state.driver.exception
    state = replace(state, driver=replace(state.driver, phase="ended", exit_code=code))
    if code == 0:
        return state
    meaning = state.exit_codes.get(str(code), "")
    message = str(event.data.get("reason", "")) + (f": {meaning}" if meaning else "")
    failure = raised or Failure(t=event.t, kind="signal" if code < 0 else "exit", node=DRIVER, message=message)
    return state.with_failure(failure)


def _on_driver_exception(state: ClusterState, event: Event) -> ClusterState:
    kind, message = str(event.data.get("type", "")), str(event.data.get("message", ""))
    text = ": ".join(part for part in (kind, message) if part)
    hint = str(event.data.get("hint", ""))  # if the driver knows a remedy
    traceback = str(event.data.get("traceback", "")) or (f"Try: {hint}" if hint else "")
    failure = Failure(t=event.t, kind="exception", node=DRIVER, message=text, traceback=traceback)
    return replace(state, driver=replace(state.driver, exception=failure)) if state.driver else state


def _on_driver_metric(state: ClusterState, event: Event) -> ClusterState:
    step = event.data.get("step")
    first = event.t if state.first_step_at is None else min(state.first_step_at, event.t)
    driver = replace(state.driver, step=step) if state.driver else None
    return replace(state.with_metrics(event.data), first_step_at=first, driver=driver)


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


_FROM_LOST_NODES = ("failure", "engine")  # why composesim stops a run whose engine ends its nodes one after another
_FOLDS_OF_LINES: Mapping[str, Callable[[ClusterState, Sequence[Event]], ClusterState]] = {
    "metric": fold_ranks.fold_metrics,
    "numbers": fold_ranks.fold_numbers,
}
_HANDLERS: Mapping[str, Callable[[ClusterState, Event], ClusterState]] = {
    "started": _on_started,
    "environment": _on_environment,
    "hang": lambda state, event: replace(state, hang=_failure_of(event, "hang")),
    "note": _on_note,
    "feature-off": _on_feature_off,
    "ended": _on_ended,
    "ready": _on_ready,
    "stopping": _on_stopping,
    **fold_nodes.HANDLERS,
    **fold_ranks.HANDLERS,
    "fault": _on_fault,
    "heal": _on_heal,
    "refused": _on_refused,
    "link": lambda state, event: replace(state, links=tuple(event.data.get("links") or ())),
    "scale": lambda state, event: replace(state, wanted=tuple(event.data.get("names") or ()), wanted_at=event.t),
    "recovered": _on_recovered,
}
_OF_DRIVER: Mapping[str, Callable[[ClusterState, Event], ClusterState]] = {
    "exception": _on_driver_exception,
    "metric": _on_driver_metric,
    "numbers": lambda state, event: state.with_metrics(new_numbers(event, state.metrics)),
}
