"""How does a node signal its ranks, with all that they started, and never a stranger who was given their number?"""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass

from . import usage


@dataclass(frozen=True)
class Ending:
    """How a process ended: `status` as in `subprocess`, an exit code or minus a signal."""

    status: int

    @property
    def code(self) -> int | None:
        return None if self.status < 0 else self.status

    @property
    def signal(self) -> int | None:
        return -self.status if self.status < 0 else None

    @property
    def words(self) -> str:
        """`SIGKILL`, `exit code 3`."""
        return signal.Signals(-self.status).name if self.status < 0 else f"exit code {self.status}"


@dataclass
class Rank:
    """
    A rank process of the present round; `pid` is its process group too, 0 until it has started and when its group is gone.

    One that a launcher of others will start, or has started and seen end, counts as `ended` meanwhile: nobody waits for it.
    """

    rank: int
    pid: int = 0
    ended: bool = False

    def signal(self, number: int) -> None:
        """Signal the rank and its children; 0 only looks whether any are left."""
        if not self.pid:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)
            if not (self.ended and number == signal.SIGKILL):
                return
        if self.ended:  # its group has ended as well: the kernel may give the number to a stranger
            self.pid = 0
            return
        # It was forked this instant and has no group of its own yet; or it has ended, which we shall hear next.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)


class OutOfMemoryKills:
    """Was it for want of memory that the kernel killed a rank? Only a container of its own can tell."""

    def __init__(self, *, contained: bool) -> None:
        """Count from now on."""
        self._contained = contained
        self._known = usage.out_of_memory_kills() if contained else 0

    def ended(self, status: int) -> bool:
        """Whether a rank that ended with `status` ended so."""
        if status != -signal.SIGKILL or not self._contained:
            return False
        before, self._known = self._known, usage.out_of_memory_kills()
        return self._known > before
