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


class ContainerLimits:
    """Counts how often the kernel enforced a limit of this node, to find the ranks that failed for that reason."""

    def __init__(self, *, contained: bool) -> None:
        """Start to count in a container, and in a job of Slurm; not on plain processes, whose limits are those of the machine."""
        self._contained = contained or os.environ.get("COMPOSESIM_ENGINE") == "slurm"
        self._kills, self._refused = self._counted()

    def reached_by(self, status: int, *, refused: bool) -> dict[str, bool]:
        """
        Return whether a rank that has just ended with `status` ran out of memory (`oom`), or of process ids (`no_process_ids`).

        `refused` says that the rank itself could not be started for lack of a process id.
        """
        kills, refusals = self._kills, self._refused
        self._kills, self._refused = self._counted()
        return {
            "oom": status == -signal.SIGKILL and self._kills > kills,
            "no_process_ids": refused or (status != 0 and self._refused > refusals),
        }

    def _counted(self) -> tuple[int, int]:
        return (usage.out_of_memory_kills(), usage.refused_processes()) if self._contained else (0, 0)
