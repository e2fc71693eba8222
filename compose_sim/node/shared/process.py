"""Tell or arrange when processes of nodes end, set the command line that `ps` shows, read an environment, convert exit statuses."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

ALIVE = "control/alive"  # a file in the run's folder, which composesim and the supervisor of the run lock
# Exists in the folder of a run on a cluster once composesim sends SIGTERM to nodes; else the cluster has sent it.
STOP_NOTE = "control/stop"
_GONE_AFTER = 10  # looks, a second or more apart
_PR_SET_PDEATHSIG = 1
_ARG_START, _ARG_END = 45, 46  # in /proc/self/stat, counted after the name: proc(5) calls them 48 and 49


def die_with(parent: int) -> None:
    """Have the kernel kill this process when the process `parent` ends, so that no rank outlives the agent."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it ended before the call
        os.kill(os.getpid(), signal.SIGKILL)


def set_command_line(command: Sequence[str]) -> None:
    """Have `ps` show this command for this process, if it fits into the memory of the real one."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, room = int(fields[_ARG_START]), int(fields[_ARG_END]) - int(fields[_ARG_START])
    text = b"".join(os.fsencode(argument) + b"\0" for argument in command)
    if start and len(text) <= room:
        ctypes.memmove(start, text.ljust(room, b"\0"), room)


def environment_of(pid: int) -> dict[str, str]:
    """Return the environment that a process was started with; empty if it has exited or belongs to another user."""
    try:
        block = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    return dict(os.fsdecode(entry).split("=", 1) for entry in block.split(b"\0") if b"=" in entry)


def is_on_cluster() -> bool:
    """Return whether this is a node of a cluster, which gives notice with SIGTERM before it kills the processes of a job."""
    return os.environ.get("COMPOSESIM_ENGINE", "local") != "local"


def shell_status(status: int) -> int:
    """Return a status of `subprocess` (an exit code, or minus a signal) as a shell reports it."""
    return status if status >= 0 else 128 - status


class Owners:
    """Tells whether composesim and the supervisor of this run have both ended, so that nobody will remove its nodes."""

    def __init__(self, folder: Path) -> None:
        """Look at the lock for the first time; `folder` is that of the run."""
        self._file = folder / ALIVE
        # Of a container, the file system may be in a virtual machine that does not show locks of other processes.
        self._were_seen, self._free, self._next = os.environ.get("COMPOSESIM_ENGINE") == "local", 0, 0.0
        self.are_gone()

    def are_gone(self) -> bool:
        """Return whether nobody has held the lock for some seconds."""
        now = time.monotonic()
        if now < self._next or is_on_cluster():  # where the locks of another machine may be lost
            return False
        self._next = now + 1.0
        try:
            file = os.open(self._file, os.O_RDONLY)
        except OSError:  # the run is over, or was rendered
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            self._free += self._were_seen
        except BlockingIOError:
            self._were_seen, self._free = True, 0
        except OSError:
            return False
        finally:
            os.close(file)
        return self._free >= _GONE_AFTER
