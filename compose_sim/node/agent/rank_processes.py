"""Signal a rank with everything it started, but never a process that reuses the process id."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass

from . import usage


@dataclass(frozen=True)
class ExitStatus:
    """How a process ended: `status` is an exit code or minus a signal, as in `subprocess`."""

    status: int

    @property
    def code(self) -> int | None:
        return None if self.status < 0 else self.status

    @property
    def signal(self) -> int | None:
        return -self.status if self.status < 0 else None

    def __str__(self) -> str:
        """Return `SIGKILL` or `exit code 3`."""
        return signal.Signals(-self.status).name if self.status < 0 else f"exit code {self.status}"


@dataclass
class RankProcess:
    """
    A rank of the current round. `pid` is also the process group; it is 0 before the start, and after the group has ended.

    A rank that another launcher starts counts as `ended` while it does not run, because nothing waits for it.
    """

    rank: int
    pid: int = 0
    ended: bool = False

    def signal(self, number: int) -> None:
        """Signal the rank and its children; signal 0 only checks whether any are left."""
        if not self.pid:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)
            if not (self.ended and number == signal.SIGKILL):
                return
        if self.ended:  # the group has ended as well, and the kernel may reuse the id
            self.pid = 0
            return
        # It was forked just now and does not lead a group yet; or it has ended, and that will be reported next.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)


class OutOfMemoryKills:
    """Counts the kernel's out-of-memory kills, to find the ranks that were killed for that reason; only in containers."""

    def __init__(self, *, contained: bool) -> None:
        """Start to count."""
        self._contained = contained
        self._known = usage.out_of_memory_kills() if contained else 0

    def explains(self, status: int) -> bool:
        """Return whether a rank that has just ended with `status` ran out of memory."""
        if status != -signal.SIGKILL or not self._contained:
            return False
        before, self._known = self._known, usage.out_of_memory_kills()
        return self._known > before
