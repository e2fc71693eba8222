"""How does Ctrl-C, or SIGTERM, end a run? As an exception where the run waits for the engine; as news to the loop that follows it.

An exception anywhere in that loop would lose the events it has just read. It also tears objects of threading: an Event that
is waited for can keep its lock, and the run would hang where it was to end.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class News:
    """What threads and signals have to tell the main thread: in a queue that a signal may meet at any moment."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[bool] = SimpleQueue()

    def tell(self, *, interrupt: bool = False) -> None:
        """There is something to look at; or somebody wants the end."""
        self._queue.put(interrupt)

    def wants_end(self, *, within: float) -> bool:
        """Wait for news, so many seconds at most; whether somebody wants the end."""
        told = []
        try:
            told.append(self._queue.get(timeout=max(0.0, within)))
            while True:
                told.append(self._queue.get_nowait())
        except Empty:
            return any(told)


@contextmanager
def interrupts_raise() -> Iterator[None]:
    """Inside, such a signal raises KeyboardInterrupt."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    with _handled(interrupt):
        yield


@contextmanager
def interrupts_told(news: News) -> Iterator[None]:
    """Inside, such a signal is news."""
    with _handled(lambda: news.tell(interrupt=True)):
        yield


@contextmanager
def _handled(handle: Callable[[], None]) -> Iterator[None]:
    # Where a shell started us in the background, Ctrl-C is not for us.
    numbers = [number for number in _NUMBERS if (number, signal.getsignal(number)) != (signal.SIGINT, signal.SIG_IGN)]
    before = {number: signal.signal(number, lambda *_: handle()) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
