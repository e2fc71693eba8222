"""Measure contestants in turn (A B C A B C), so that a busy machine affects all of them alike."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from bench.process import RunFailedError

FAILURES_ALLOWED = 3  # per contestant; then the table shows a reason instead of a figure


class NotMeasurableError(Exception):
    """A contestant cannot run here; the text says why, and replaces the figure in the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """Something to time. `measure` returns the seconds of one run and leaves nothing behind."""

    name: str
    measure: Callable[[], float]
    rounds: int | None = None  # at most this many, for contestants that are shown but not judged


@dataclass(slots=True)
class Samples:
    """`seconds` has one entry per round, so that entries of the same round can be compared."""

    seconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def median(self) -> float:
        return median(self.seconds)


def alternate(contestants: Sequence[Contestant], rounds: int) -> dict[str, Samples]:
    """Time every contestant once per round; a run that fails is recorded and repeated."""
    samples = {contestant.name: Samples() for contestant in contestants}
    for number in range(rounds):
        for contestant in contestants:
            mine = samples[contestant.name]
            if contestant.rounds is not None and number >= contestant.rounds:
                continue
            if len(mine.failures) < FAILURES_ALLOWED:
                _measure_once(contestant, mine)
    return samples


def _measure_once(contestant: Contestant, samples: Samples) -> None:
    while len(samples.failures) < FAILURES_ALLOWED:
        try:
            seconds = contestant.measure()
        except RunFailedError as error:
            samples.failures.append(str(error))
            print(f"  {contestant.name}: failed: {error}", file=sys.stderr, flush=True)
        else:
            samples.seconds.append(seconds)
            print(f"  {contestant.name}: {seconds:.2f} s", file=sys.stderr, flush=True)
            return
