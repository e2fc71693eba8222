"""Append the events of a node to its event file, as JSON lines, stamped with the time of the run."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Callable

from .regular_files import open_to_append

CLOCK_FILE = "control/clock"  # in the run's folder
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class RunClock:
    """Unix time at the start of the run, plus the time that has passed since; `ahead` of the machine's monotonic clock."""

    ahead: float
    wall: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic

    @classmethod
    def begin(cls) -> RunClock:
        """Return a clock that agrees with the machine's clock at this moment."""
        return cls(time.time() - time.monotonic())

    @classmethod
    def parse(cls, text: str) -> RunClock:
        """Return the clock that `str` described; a new one if the machine has been started since, or it is another machine."""
        ahead, _, boot = text.strip().partition(" ")
        try:
            return cls(float(ahead)) if boot == _boot_id() else cls.begin()
        except ValueError:
            return cls.begin()

    def __str__(self) -> str:
        return f"{self.ahead!r} {_boot_id()}"

    def now(self) -> float:
        """Return the time of the run, in Unix seconds."""
        return self.ahead + self.monotonic()

    def lag(self) -> float:
        """Return by how many seconds the machine's clock is ahead of this one."""
        return self.wall() - self.now()


@cache
def clock_of(folder: Path) -> RunClock:
    """Return the clock of the run in this folder; without one, as in a rendered folder, a clock of this process."""
    try:
        return RunClock.parse((folder / CLOCK_FILE).read_text())
    except OSError:
        return RunClock.begin()


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:  # not Linux
        return ""


@dataclass(frozen=True)
class EventLog:
    """The event file of one node. It is opened for every line, so it can be used after a fork and by any process."""

    folder: Path
    run: str
    node: str
    rank: int | None = None
    generation: int | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> EventLog:
        """Return the event log that COMPOSESIM_DIR, COMPOSESIM_RUN and COMPOSESIM_NODE describe; KeyError if one is missing."""
        folder, run, node = (environment[f"COMPOSESIM_{name}"] for name in ("DIR", "RUN", "NODE"))
        return cls(folder=Path(folder), run=run, node=node)

    def bind(self, *, rank: int | None = None, generation: int | None = None) -> EventLog:
        """Return the same log with another rank and generation in each event."""
        return replace(self, rank=rank, generation=generation)

    def emit(self, kind: str, /, **data: Any) -> None:
        """Append one event with the current time of the run."""
        event = {"v": 1, "t": clock_of(self.folder).now(), "run": self.run, "node": self.node, "rank": self.rank}
        line = json.dumps({**event, "generation": self.generation, "kind": kind, "data": data}, default=str) + "\n"
        try:
            descriptor = open_to_append(self.path)
            try:
                # One write per line: with O_APPEND, lines from several processes never interleave.
                os.write(descriptor, line.encode())
            finally:
                os.close(descriptor)
        except OSError as error:
            # A full disk must not end a training run; print the line that could not be stored.
            print(f"composesim: cannot append to {self.path} ({error.strerror}): {line}", end="", file=sys.stderr)

    @property
    def path(self) -> Path:
        """The node's event file."""
        return self.folder / "events" / f"{self.node}.jsonl"
