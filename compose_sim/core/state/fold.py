"""Fold events into the state of a run, with one function per kind of event.

This module handles the events of the whole run; `fold_nodes`, `fold_ranks` and `fold_interventions` handle the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from compose_sim.core.events.events import Event
from compose_sim.core.plan.model import DRIVER, Plan
from compose_sim.core.state import fold_driver, fold_interventions, fold_nodes, fold_ranks
from compose_sim.core.state.rank_places import speaks_for_another
from compose_sim.core.state.state import ClusterState, Failure, initial_state

# When a line was printed is an estimate, and another one if the log is read again.
_OF_LINES = ("log", "metric", "numbers")
_MOST_NOTES, _LONGEST_NOTE = 40, 300


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
    handlers = fold_driver.HANDLERS if event.node == DRIVER else _HANDLERS
    handler = handlers.get(event.kind)
    return handler(state, event) if handler and not speaks_for_another(state, event) else state


def _on_started(state: ClusterState, event: Event) -> ClusterState:
    host = {name: value for name, value in event.data.items() if name != "version"}
    return replace(state, started_at=event.t, host=host)


def _on_environment(state: ClusterState, event: Event) -> ClusterState:
    return replace(state, versions={**event.data, **state.versions})


def _on_hang(state: ClusterState, event: Event) -> ClusterState:
    return replace(state, hang=_failure_of(event, "hang"))


def _on_note(state: ClusterState, event: Event) -> ClusterState:
    message = str(event.data.get("message", ""))
    return state if message in state.notes else replace(state, notes=(*state.notes, message))


def _on_feature_off(state: ClusterState, event: Event) -> ClusterState:
    """Note what ranks cannot do with their torch; a script may have written the event, so there are not many of them."""
    first_line = str(event.data.get("message", "")).partition("\n")[0][:_LONGEST_NOTE]
    if len(state.notes) >= _MOST_NOTES or first_line in state.notes:
        return state
    return replace(state, notes=(*state.notes, first_line))


def _on_ended(state: ClusterState, event: Event) -> ClusterState:
    """Store how the master ended the run; a run that passed needs no reason."""
    passed = bool(event.data.get("passed"))
    reason = state.ended_because if passed else str(event.data.get("reason", ""))
    if state.driver:
        state = fold_driver.on_ended(state, event)
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


_FROM_LOST_NODES = ("failure", "engine")  # why composesim stops a run whose engine ends its nodes one after another
_FOLDS_OF_LINES: Mapping[str, Callable[[ClusterState, Sequence[Event]], ClusterState]] = {
    "metric": fold_ranks.fold_metrics,
    "numbers": fold_ranks.fold_numbers,
}
_HANDLERS: Mapping[str, Callable[[ClusterState, Event], ClusterState]] = {
    "started": _on_started,
    "environment": _on_environment,
    "hang": _on_hang,
    "note": _on_note,
    "feature-off": _on_feature_off,
    "ended": _on_ended,
    "ready": fold_driver.on_ready,
    "stopping": _on_stopping,
    **fold_nodes.HANDLERS,
    **fold_ranks.HANDLERS,
    **fold_interventions.HANDLERS,
}
