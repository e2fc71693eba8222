"""Does this process outlive the one that started it? It must not: an agent that is killed takes its ranks along."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Have the kernel kill this process when `parent`, the process that started it, ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it was gone before we asked
        os.kill(os.getpid(), signal.SIGKILL)
