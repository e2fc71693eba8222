"""Measure the time in which silent nodes could have been heard: on a busy machine, nodes that are well are silent too."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

_LONGEST_STEP_SECONDS = 0.5  # the server wakes up twice as often, unless this process gets no CPU time
_WINDOW_SECONDS = 1.0
_IDLE_CPUS = 0.5  # with this much unused, every process that wants to run does
_CROWD = 16  # processes that want to run, for each CPU; with more of them, nodes cannot speak in time
_TICKS = os.sysconf("SC_CLK_TCK")
_BUSY_SECONDS, _IDLE_SECONDS = 30.0, 5.0


@dataclass(frozen=True)
class Patience:
    """Seconds of silence after which a node is lost: at any time, and while the machine was idle throughout."""

    busy: float = _BUSY_SECONDS
    idle: float = _BUSY_SECONDS

    @classmethod
    def of(cls, node_timeout: float | None, *, elastic: bool) -> Patience:
        """Return what `--node-timeout` asks for. By default, elastic runs go on without a node early: it may come back."""
        if node_timeout is not None:
            return cls(node_timeout, node_timeout)
        return cls(_BUSY_SECONDS, _IDLE_SECONDS if elastic else _BUSY_SECONDS)


class MachineClock:
    """
    A clock that stops while this process gets no CPU time, and is slow while too many processes want some.

    `now` is its time, and `idle_since` when the machine was last busy.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic, proc: Path = Path("/proc")) -> None:
        """Start at 0. On a machine that does not report how much CPU time is unused, the machine counts as busy."""
        self._monotonic, self._proc, self._cpus = monotonic, proc, os.cpu_count() or 1
        self._read_at = self._sampled_at = monotonic()
        self._unused = self._unused_seconds()
        self.now = self.idle_since = 0.0

    def advance(self) -> None:
        """Must be called at least every `_LONGEST_STEP_SECONDS`; time beyond that does not count."""
        read_at = self._monotonic()
        self.now += min(read_at - self._read_at, _LONGEST_STEP_SECONDS) / max(1.0, self._crowd() / _CROWD)
        self._read_at = read_at
        passed = read_at - self._sampled_at
        if passed >= _WINDOW_SECONDS:
            before, self._unused, self._sampled_at = self._unused, self._unused_seconds(), read_at
            if self._unused - before < _IDLE_CPUS * passed:
                self.idle_since = self.now

    def _crowd(self) -> float:
        """Return how many processes want to run for each CPU; 0 if unknown."""
        try:
            return int((self._proc / "loadavg").read_text().split()[3].partition("/")[0]) / self._cpus
        except (OSError, ValueError, IndexError):
            return 0.0

    def _unused_seconds(self) -> float:
        """Return for how long CPUs had nothing to do since the start of the machine; processes that wait for disks do not count."""
        try:
            return int((self._proc / "stat").read_text().split(maxsplit=5)[4]) / _TICKS
        except (OSError, ValueError, IndexError):
            return 0.0
