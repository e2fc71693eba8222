"""Bound the time in which a run is judged: a script decides how much there is to read."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from compose_sim.errors import OutOfTimeError
from compose_sim.node.shared.frames import ignores_errors

JUDGING_S = (
    60.0  # of CPU, of which a busy machine takes nothing; 40,000 failures take 10 s, and ordinary runs less than one
)
_NEXT_S = 1.0
_AGAIN_S = 0.01


@contextmanager
def judging_time(seconds: float = JUDGING_S, *, then: float = _NEXT_S) -> Iterator[None]:
    """
    Raise OutOfTimeError in the context once this process has used so many seconds of CPU in it, and again after each `then` seconds.

    So a check that is given up does not cost those that follow. Signals reach the main thread only: in others there is no limit.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def expire(_: int, frame: FrameType | None) -> None:
        if _drops_errors(frame):
            signal.setitimer(signal.ITIMER_PROF, _AGAIN_S, then)
        else:
            raise OutOfTimeError

    before = signal.signal(signal.SIGPROF, expire)
    signal.setitimer(signal.ITIMER_PROF, seconds, then)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _drops_errors(frame: FrameType | None) -> bool:
    """Whether Python would print the error and go on, because a caller ignores errors."""
    while frame is not None:
        if ignores_errors(frame.f_code):
            return True
        frame = frame.f_back
    return False
