"""What observers share in a rank: where they write, how far the script has come, and which line is running."""

from __future__ import annotations

import os
import sys
import time
import traceback
from dataclasses import dataclass, field
from functools import lru_cache
from types import FrameType
from typing import Any, Callable

from ..records.record import Place, Record
from ..shared.event_log import EventLog
from ..shared.frames import describe_with_our_line, is_of_signal_handler, is_user_code
from ..shared.progress_page import ProgressPage, WaitIn
from .observations import Observations
from .step_times import Times
from .torch_hooks import features

_SHORTEST_WAIT_S = 0.1
_LONGER_BY = 1.1  # than the longest wait with an event so far: a few events per run, not one per collective
_SECONDS_BETWEEN_STEPS = 0.2  # with an event
IN_CHECKPOINT = "checkpoints.in_checkpoint"  # in the memory: what is saved now is already timed, or no checkpoint


@dataclass
class RankContext:
    """
    One rank, as its observers see it.

    `mode` is "" in an ordinary run, in which observers do only what is cheap, and "record" or "replay" in `composesim check`.
    `synchronizations` counts the collectives and DDP reductions: no rank passes one before the whole group has reached it.
    """

    events: EventLog
    observations: Observations
    progress: ProgressPage
    mode: str = ""
    # A child that the script forks, such as a loader worker, has another.
    process: int = field(default_factory=os.getpid)
    steps: int = 0
    synchronizations: int = 0
    memory: dict[str, Any] = field(default_factory=dict)  # what observers remember, each under a separate name
    failed: set[str] = field(default_factory=set)  # observers that have raised
    _waits_in: str = ""
    _waits_with: tuple[str, int] = ("", 0)
    _waits_since: float = 0.0
    _long_wait: float = _SHORTEST_WAIT_S  # in seconds: a longer one gets an event
    _emitted_step: int = 0
    _next_step_at: float = 0.0

    def __post_init__(self) -> None:
        self.times = Times(self.events, self.observations)

    @property
    def is_here(self) -> bool:
        """Whether this process is the rank itself, not a child that it forked."""
        return self.process == os.getpid()

    @property
    def thorough(self) -> bool:
        """Whether observers may take more time, for `composesim check`."""
        return bool(self.mode)

    def note(self, record: Record) -> None:
        """Write one record."""
        self.observations.note(record)

    def guard(self, observer: str, function: Callable[..., Any], *values: Any) -> Any:
        """
        Return `function(context, *values)`, or None if it raises: an observer's error must not reach the script.

        What a signal handler of the script raises is not an observer's error.
        """
        try:
            return function(self, *values)
        except Exception as error:  # noqa: BLE001 - it is reported
            self.has_raised(observer, error)
            return None

    def has_raised(self, observer: str, error: Exception) -> None:
        """Switch off the feature of an observer whose exception is being handled; raise it again if it is a signal handler's."""
        if is_of_signal_handler(error):
            raise error
        self.failed.add(observer)
        features.raised(features.feature_of(observer), describe_with_our_line(error), traceback.format_exc())

    def count_step(self) -> None:
        """Count an optimizer step, and emit a few of them per second as events."""
        self.steps += 1
        self.progress.set("steps", self.steps)
        now = time.monotonic()
        if now >= self._next_step_at:
            self._next_step_at = now + _SECONDS_BETWEEN_STEPS
            self.emit_step()

    def emit_step(self) -> None:
        """Emit the number of steps so far, unless that has been done."""
        if self.steps > self._emitted_step:
            self._emitted_step = self.steps
            self.events.emit("step", step=self.steps)

    def wait_in(self, what: str, group: str = "", size: int = 0) -> None:
        """
        Record what the rank waits in for other ranks from now on; "" if it no longer waits. Emit an event for each longest wait.

        `group` is the name of the process group, and `size` the number of its ranks, if they are known.
        """
        now, times = time.monotonic(), self.times
        waited_in, waited_since = self._waits_in, self._waits_since
        if waited_in:
            number = times.wait(waited_in, waited_since, now, *self._waits_with)
            self.progress.finish(self._waits_with[0], number)
        self._waits_in, self._waits_since, self._waits_with = what, now, (group, size)
        if what:
            since = times.unix_micros(now) if times.waits_not_before <= now else 0
            self.progress.wait_in(WaitIn(what, since, group, size, times.following(group)))
        if waited_in and now - waited_since > self._long_wait:
            self._long_wait = _LONGER_BY * (now - waited_since)
            self.events.emit("waited", what=waited_in, seconds=round(now - waited_since, 3))

    def look_at(self, frame: FrameType | None) -> None:
        """Note the line of the script that a frame of the main thread comes from, unless the rank waits for others."""
        at = None if self._waits_in else place_in(frame)
        self.progress.at_line(at)
        if at:
            self.times.at_line(at)

    def flush(self) -> None:
        """Write out all records: call it at every step, and before anything that may never return."""
        self.observations.flush()


_context: RankContext | None = (
    None  # until a rank begins: hooks may be set earlier, in the process that forks the ranks
)


def begin(context: RankContext) -> None:
    """Make this process a rank."""
    global _context
    _context = context


def here() -> RankContext | None:
    """Return the rank's context; None before a rank begins, and in processes that a rank forked."""
    return _context if _context is not None and _context.is_here else None


def in_child() -> RankContext | None:
    """Return the context of the rank that forked this process; None in the rank itself."""
    return _context if _context is not None and not _context.is_here else None


def place(depth: int = 1) -> Place | None:
    """Return the file and line of the innermost user code on the stack; None if there is none."""
    return place_in(sys._getframe(depth + 1))


def place_in(frame: FrameType | None) -> Place | None:
    """Return the file and line of the innermost user code from a frame on; None if there is none."""
    frame = user_frame(frame)
    return None if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def user_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of user code from a frame on; None if there is none."""
    while frame is not None and not is_user_code(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


@lru_cache(maxsize=1024)
def where(at: Place | None) -> str:
    """Return " (train.py, line 7)", or "" if the place is not known."""
    return f" ({os.path.basename(at[0])}, line {at[1]})" if at else ""  # noqa: PTH119 - a microsecond, not ten


def variable_number(name: str) -> int | None:
    """Return an environment variable as a number; None if it is not set, or is no number."""
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else None
