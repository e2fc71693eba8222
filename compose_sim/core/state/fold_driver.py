"""Fold the events of a driver, the program that drives the ranks of all nodes and has no rank itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from compose_sim.core.events.events import Event
from compose_sim.core.plan.model import DRIVER
from compose_sim.core.state.state import ClusterState, Failure


def on_ready(state: ClusterState, event: Event) -> ClusterState:
    """The framework reports that all nodes are there."""
    if not state.driver or state.driver.ready_at is not None:
        return state
    return replace(state, driver=replace(state.driver, phase="running", ready_at=event.t, facts=event.data))


def on_ended(state: ClusterState, event: Event) -> ClusterState:
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
    return replace(state, failures=(*state.failures, failure))


def _on_exception(state: ClusterState, event: Event) -> ClusterState:
    kind, message = str(event.data.get("type", "")), str(event.data.get("message", ""))
    text = ": ".join(part for part in (kind, message) if part)
    hint = str(event.data.get("hint", ""))  # if the driver knows a remedy
    traceback = str(event.data.get("traceback", "")) or (f"Try: {hint}" if hint else "")
    failure = Failure(t=event.t, kind="exception", node=DRIVER, message=text, traceback=traceback)
    return replace(state, driver=replace(state.driver, exception=failure)) if state.driver else state


def _on_metric(state: ClusterState, event: Event) -> ClusterState:
    step = event.data.get("step")
    first = event.t if state.first_step_at is None else min(state.first_step_at, event.t)
    driver = replace(state.driver, step=step) if state.driver else None
    return replace(state.with_metrics(event.data), first_step_at=first, driver=driver)


def _on_numbers(state: ClusterState, event: Event) -> ClusterState:
    return state.with_metrics(new_numbers(event, state.metrics))


def new_numbers(event: Event, known: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the numbers of a line, without those that metric lines have too: `known` holds a step if there are metric lines."""
    values: Mapping[str, Any] = event.data["values"]
    return {name: value for name, value in values.items() if name not in known} if "step" in known else values


HANDLERS = {"exception": _on_exception, "metric": _on_metric, "numbers": _on_numbers}
