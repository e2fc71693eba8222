"""Handle Ctrl-C, SIGTERM and SIGHUP: raise an exception while a run waits for the engine, and queue an entry while its loop runs.

An exception in the middle of that loop would lose the events that were just read. It also corrupts objects of `threading`:
an interrupted wait on an Event can leave the lock held, and the run would hang when it should end.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from queue import Empty, SimpleQueue

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class WakeUps:
    """Wakes the main thread, from other threads or from signal handlers. A SimpleQueue may be interrupted at any moment."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[bool] = SimpleQueue()

    def wake(self, *, interrupt: bool = False) -> None:
        """Wake the main thread because there is something new, or because the user interrupts the run."""
        self._queue.put(interrupt)

    def wait(self, seconds: float) -> bool:
        """Wait until `wake` is called, or for the timeout; return whether the user interrupts the run."""
        reasons = []
        try:
            reasons.append(self._queue.get(timeout=max(0.0, seconds)))
            while True:
                reasons.append(self._queue.get_nowait())
        except Empty:
            return any(reasons)


@contextmanager
def interrupts_raise() -> Iterator[None]:
    """Raise KeyboardInterrupt for these signals inside the context."""

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    with _handled(interrupt):
        yield


@contextmanager
def interrupts_wake(wake_ups: WakeUps) -> Iterator[None]:
    """Queue these signals inside the context."""
    with _handled(lambda _: wake_ups.wake(interrupt=True)):
        yield


@contextmanager
def interrupts_delayed() -> Iterator[None]:
    """Delay these signals until the end of the context."""
    came: list[int] = []
    try:
        with _handled(came.append):
            yield
    finally:
        for number in came:
            signal.raise_signal(number)


def _leave(terminals: Sequence[int]) -> None:
    """Send output nowhere if the terminal has been closed: writing to it fails, and the run is to end with a report."""
    closed = [number for number in terminals if not os.isatty(number)]
    if closed:
        nothing = os.open(os.devnull, os.O_WRONLY)
        for number in closed:
            os.dup2(nothing, number)
        os.close(nothing)


@contextmanager
def _handled(handle: Callable[[int], None]) -> Iterator[None]:
    """Call `handle` with the number of each of these signals inside the context."""
    if threading.current_thread() is not threading.main_thread():  # Python allows signal handlers in that thread only
        yield
        return
    # If a shell started this process in the background, it ignores SIGINT: Ctrl-C is meant for another program.
    numbers = [number for number in _NUMBERS if (number, signal.getsignal(number)) != (signal.SIGINT, signal.SIG_IGN)]
    terminals = [number for number in (1, 2) if os.isatty(number)]

    def handle_signal(number: int, _: object) -> None:
        _leave(terminals)
        handle(number)

    before = {number: signal.signal(number, handle_signal) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
