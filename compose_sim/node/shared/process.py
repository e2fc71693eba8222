"""What must a process here say to the kernel? That it dies with its parent, and under which words it is listed."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_ARG_START, _ARG_END = 45, 46  # in /proc/self/stat, counted from behind the name: proc(5) calls them 48 and 49


def die_with(parent: int) -> None:
    """Have the kernel kill this process when `parent`, the process that started it, ends: no rank outlives its agent."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it was gone before we asked
        os.kill(os.getpid(), signal.SIGKILL)


def list_as(words: Sequence[str]) -> None:
    """Have `ps` show `words` for this process, as if it had been started with them, where they fit into the space of the real ones."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, room = int(fields[_ARG_START]), int(fields[_ARG_END]) - int(fields[_ARG_START])
    text = b"".join(os.fsencode(word) + b"\0" for word in words)
    if start and len(text) <= room:
        ctypes.memmove(start, text.ljust(room, b"\0"), room)
