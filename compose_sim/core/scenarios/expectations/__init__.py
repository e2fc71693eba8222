"""Judge the expectations of a scenario, one function each; this module defines their argument and their result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from compose_sim.core.events.events import Event
from compose_sim.core.report.report import ExpectationStatus, Report

PASSED: Final = "passed"
FAILED: Final = "failed"
INCONCLUSIVE: Final = "inconclusive"


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """What expectations judge: the events of a finished run in order, its report, and what is left of it."""

    events: tuple[Event, ...]
    report: Report
    left: tuple[str, ...] | None = None  # names of what the run has left; None if it was not determined

    def of(self, *kinds: str) -> Iterator[Event]:
        """Return the events of these kinds, in order."""
        return (event for event in self.events if event.kind in kinds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The result of one expectation: the status, the reason, and the measured value."""

    status: ExpectationStatus
    detail: str
    measured: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A fault that took a node or a rank from the run, and the recovery from it."""

    text: str
    recovered: Mapping[str, Any] | None  # the data of the `recovered` event


def measured(detail: str, value: Any, *, good: bool) -> Evaluation:
    """Return passed or failed, with the measured value."""
    return Evaluation(status=PASSED if good else FAILED, detail=detail, measured=value)


def inconclusive(why: str) -> Evaluation:
    """Return that the expectation cannot be judged, and why."""
    return Evaluation(status=INCONCLUSIVE, detail=why)


def losses_of(run: FinishedRun) -> list[Loss]:
    """Return the faults that removed a node or a rank, in order, each with its recovery, or that of a later fault."""
    recoveries = [*run.of("recovered")]
    undone = {event.data.get("id") for event in run.of("refused")}
    losses = []
    for event in run.of("fault"):
        data = event.data
        if data.get("phase") == "begun" and data.get("loses") and data.get("id") not in undone:
            after = [each for each in recoveries if each.t >= event.t]
            own = [each for each in after if each.data.get("id") == data.get("id")]
            recovered = next((each.data for each in own or after), None)
            losses.append(Loss(text=str(data.get("text")), recovered=recovered))
    return losses
