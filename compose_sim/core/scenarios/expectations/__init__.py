"""Did the run do what its scenario expects? One function an expectation; this module says what each is given and gives back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from compose_sim.core.events.events import Event
from compose_sim.core.report.report import ExpectationStatus, Report

PASSED: Final = "passed"
FAILED: Final = "failed"
INCONCLUSIVE: Final = "inconclusive"


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """How the run went, as far as expectations ask: its events in order, its report, and what is left of it."""

    events: tuple[Event, ...]
    report: Report
    left: tuple[str, ...] | None = None  # names of what the run has left; None where nobody looked

    def of(self, *kinds: str) -> Iterator[Event]:
        """Events of these kinds, in order."""
        return (event for event in self.events if event.kind in kinds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What became of an expectation: the word, why in words, and the value that was measured."""

    status: ExpectationStatus
    detail: str
    measured: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A fault that took a node or a rank from the run, and what came after it."""

    text: str
    recovered: Mapping[str, Any] | None  # the data of the `recovered` event


def measured(detail: str, value: Any, *, good: bool) -> Judged:
    """Passed or failed, by a value that was measured."""
    return Judged(status=PASSED if good else FAILED, detail=detail, measured=value)


def inconclusive(why: str) -> Judged:
    """It cannot be judged."""
    return Judged(status=INCONCLUSIVE, detail=why)


def losses_of(course: Course) -> list[Loss]:
    """The faults that took something from the run, in order, each with the recovery from it, or from a later one."""
    recoveries = [*course.of("recovered")]
    undone = {event.data.get("id") for event in course.of("refused")}
    losses = []
    for event in course.of("fault"):
        data = event.data
        if data.get("phase") == "begun" and data.get("loses") and data.get("id") not in undone:
            after = [each for each in recoveries if each.t >= event.t]
            own = [each for each in after if each.data.get("id") == data.get("id")]
            first: Iterable[Event] = own or after
            recovered = next((each.data for each in first), None)
            losses.append(Loss(text=str(data.get("text")), recovered=recovered))
    return losses
