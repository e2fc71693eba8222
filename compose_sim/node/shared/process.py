"""Kill a process when the parent ends, set the command line that `ps` shows, read its environment, and convert exit statuses."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Sequence
from pathlib import Path

ALIVE = "control/alive"  # a file in the run's folder, which composesim and the supervisor of the run lock
# Exists in the folder of a run on a cluster once composesim sends SIGTERM to nodes; else the cluster has sent it.
STOP_NOTE = "control/stop"
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
