"""Say what a run waits for until it trains: on a terminal all the time, elsewhere after 5, 10, 20, … seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event, Thread

_FIRST_AFTER_S = 5.0


class Waiting:
    """What is being waited for, and since when the run has been starting."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._over = Event()
        self.what = ""
        self.pace: float | None = None  # steps per second

    def line(self) -> str:
        """Return `12 s, waiting for node-1 to start` or `12 s, 40.1 steps/s`, or only the time if neither is known."""
        elapsed = f"{time.monotonic() - self._began:.0f} s"
        pace = f", {self.pace:.3g} steps/s" if self.pace else ""
        return f"{elapsed}, waiting for {self.what}" if self.what else elapsed + pace

    def tell(self, say: Callable[[str], object]) -> Thread:
        """Say, in a thread, what is being waited for, and each time half as often, so that a log is not flooded."""
        thread = Thread(target=self._tell, args=(say,), daemon=True)
        thread.start()
        return thread

    def end(self) -> None:
        """Say nothing more."""
        self._over.set()

    def _tell(self, say: Callable[[str], object]) -> None:
        pause = due = _FIRST_AFTER_S
        while not self._over.wait(self._began + due - time.monotonic()):
            if self.what:
                say(f"after {self.line()}")
            due, pause = due + pause, 2 * pause
