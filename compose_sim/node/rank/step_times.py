"""Collect when a rank loads data, computes, and waits for other ranks, and write one record per optimizer step."""

from __future__ import annotations

import time
from pathlib import Path

from ..records.record import Place
from ..records.timings import StepTimes
from ..shared.event_log import EventLog, clock_of
from .observations import Observations, encoded

_MAX_SPANS = 100  # in one record
SAMPLE_EACH_S = 0.1  # the line of the script that runs
_EACH, _EVERY_TENTH = 1000, 10_000  # the last step of which each, or every tenth, is recorded; then every hundredth


class Times:
    """What has been timed since the last record. Moments are those of time.monotonic."""

    def __init__(self, events: EventLog, observations: Observations) -> None:
        self._observations = observations
        self._ahead = clock_of(events.folder).ahead
        self._work: list[tuple[str, float, float]] = []
        self._waits: list[tuple[str, float, float, str, int, int]] = []
        self._lines: list[tuple[Place, float, float]] = []
        self._sequences: dict[str, int] = {}
        self._steps = 0
        self._is_kept = True
        self.waits_not_before = 0.0  # while a backward pass computes, no wait of DDP has begun

    def work(self, kind: str, began: float, ended: float = 0.0) -> None:
        """Record work from `began` to `ended`, or now."""
        if self._is_kept:
            self._work.append((kind, began, ended or time.monotonic()))
            self._write_if_long()

    def at_line(self, at: Place) -> None:
        """Record that the script is at a line now; called by the helper thread, which may lose a sample to `write`."""
        now, lines = time.monotonic(), self._lines
        if lines and lines[-1][0] == at and now - lines[-1][2] < 2 * SAMPLE_EACH_S:
            lines[-1] = (at, lines[-1][1], now)
        elif self._is_kept and len(lines) < _MAX_SPANS:
            lines.append((at, now - SAMPLE_EACH_S, now))

    def following(self, group: str) -> int:
        """Return the number that the next wait within a group will get."""
        return self._sequences.get(group, 0) + 1

    def count(self, group: str) -> int:
        """Return the number of the next wait within a group, and count it."""
        number = self._sequences[group] = self.following(group)
        return number

    def unix_micros(self, moment: float) -> int:
        """Return a moment as Unix microseconds."""
        return round((self._ahead + moment) * 1e6)

    def wait(self, what: str, began: float, ended: float, group: str, size: int, number: int = 0) -> int:
        """Record that the rank was in something that it can finish only with the other ranks of a group; return its number."""
        sequence = number or self.count(group)
        began = max(began, self.waits_not_before)
        if self._is_kept and began <= ended:
            self._waits.append((what, began, ended, group, size, sequence))
            self._write_if_long()
        return sequence

    def step_ended(self, steps: int) -> None:
        """Write the record of a step, and decide whether the next step is recorded."""
        self.write()
        self._steps, following = steps, steps + 1
        self._is_kept = following <= _EACH or following % (10 if following <= _EVERY_TENTH else 100) == 0

    def write(self) -> None:
        """Write what has been timed since the last record."""
        if not self._work and not self._waits:
            return
        lines, self._lines = self._lines, []
        zero = min(spans[0][1] for spans in (self._work, self._waits, lines) if spans)
        work = [
            f'["{kind}",{(began - zero) * 1e6:.0f},{(ended - began) * 1e6:.0f}]' for kind, began, ended in self._work
        ]
        waits = [
            f"[{encoded(what)},{(began - zero) * 1e6:.0f},{(ended - began) * 1e6:.0f},{encoded(group)},{size},{number}]"
            for what, began, ended, group, size, number in self._waits
        ]
        more = "" if self._steps else f',"queued":{_queued():.3f}'
        at = [
            f"[{encoded(file)},{line},{(began - zero) * 1e6:.0f},{(ended - began) * 1e6:.0f}]"
            for (file, line), began, ended in lines
        ]
        more += f',"lines":[{",".join(at)}]' if at else ""
        fields = f'"step":{self._steps + 1},"began":{self._ahead + zero:.6f},"work":[{",".join(work)}]'
        self._observations.note_often(StepTimes, f'{fields},"waits":[{",".join(waits)}]{more}')
        self._work.clear()
        self._waits.clear()

    def _write_if_long(self) -> None:
        if len(self._work) + len(self._waits) >= _MAX_SPANS:
            self.write()


def _queued() -> float:
    """Return how many seconds the main thread has waited for a processor; 0 if the kernel does not count them."""
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0
