"""What is known in a rank about its own run? One Watch, which all observers share: where they write, and how far the script is."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from ..shared.event_log import EventLog
from ..shared.frames import is_user_code
from ..shared.progress_page import ProgressPage
from .observations import Observations

_WORTH_TELLING_SECONDS = 0.1
_LONGER_BY = 1.1  # than the longest wait that was told: a few lines a run, not one a collective


@dataclass
class Watch:
    """
    One rank, as its observers see it.

    `mode` is what the run is for: "" for an ordinary one (observe what is cheap), "record" and "replay" for `composesim check`.
    `synchronisations` counts what no rank passes before all of its group have come to it: collectives, and reductions by DDP.
    """

    events: EventLog
    observations: Observations
    progress: ProgressPage
    mode: str = ""
    process: int = field(
        default_factory=os.getpid
    )  # a child forked by the script (a DataLoader worker) is not the rank
    steps: int = 0
    synchronisations: int = 0
    memory: dict[str, Any] = field(default_factory=dict)  # what observers remember, each under its own name
    longest_wait: float = 0.0  # seconds: of those that were told
    _waits_in: str = ""
    _waits_since: float = 0.0

    @property
    def is_here(self) -> bool:
        """Whether this process is the rank itself, not a child that it forked."""
        return self.process == os.getpid()

    @property
    def thorough(self) -> bool:
        """Whether a check may take time for what it wants to know."""
        return bool(self.mode)

    def note(self, kind: str, **data: Any) -> None:
        """Record one observation."""
        self.observations.note(kind, **data)

    def wait_in(self, what: str) -> None:
        """From now on the rank waits for others in this; nothing: no more. A wait longer than all before is told as an event."""
        self.progress.wait_in(what)
        now = time.monotonic()
        seconds, waited_in = now - self._waits_since, self._waits_in
        self._waits_in, self._waits_since = what, now
        if waited_in and seconds > max(_WORTH_TELLING_SECONDS, _LONGER_BY * self.longest_wait):
            self.longest_wait = seconds
            self.events.emit("waited", what=waited_in, seconds=round(seconds, 3))

    def flush(self) -> None:
        """Have all observations written: to be called before what may never return, and at every step."""
        self.observations.flush()


_watch: Watch | None = None  # None until a rank begins: hooks may be set earlier, in the process that forks the ranks


def begin(watch: Watch) -> None:
    """From now on this process is a rank."""
    global _watch
    _watch = watch


def here() -> Watch | None:
    """The rank's Watch; None before a rank begins, and in processes that a rank forked."""
    return _watch if _watch is not None and _watch.is_here else None


def in_child() -> Watch | None:
    """The Watch of the rank that forked this process; None in the rank itself."""
    return _watch if _watch is not None and not _watch.is_here else None


def place(depth: int = 1) -> list[Any] | None:
    """[file, line] of the innermost code of the person's own that is running; None where there is none."""
    frame: FrameType | None = sys._getframe(depth + 1)
    while frame is not None:
        file = frame.f_code.co_filename
        if is_user_code(file):
            return [file, frame.f_lineno]
        frame = frame.f_back
    return None
