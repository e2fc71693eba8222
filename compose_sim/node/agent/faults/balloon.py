"""Take memory or threads, report it on stdout, and hold them until killed. Runs as a child of the agent.

Arguments of the role `balloon`: PARENT_PID memory BYTES | threads COUNT
"""

from __future__ import annotations

import _thread
import ctypes
import mmap
import os
import signal
import time

from .. import usage

_PR_SET_PDEATHSIG = 1
_CHUNK = 4 << 20
_SMALLEST_STACK = 32 << 10
_POLL_SECONDS = 0.02


def take_memory(count: int) -> list[mmap.mmap]:
    """Take this many bytes, unless the kernel kills a process first."""
    held, page = [], b"\1" * _CHUNK
    for _ in range(count // _CHUNK + 1):
        held.append(mmap.mmap(-1, _CHUNK))
        held[-1][:] = page  # memory is not allocated until it is written to
    return held


def take_threads(count: int) -> int:
    """Start this many threads, or as many as the kernel allows, and return their number."""
    _thread.stack_size(_SMALLEST_STACK)
    for taken in range(count):
        try:
            _thread.start_new_thread(_wait, ())
        except RuntimeError:  # the limit is reached
            return taken
    return count


def _wait() -> None:
    lock = _thread.allocate_lock()
    lock.acquire()
    lock.acquire()


def keep_taking_threads(count: int) -> None:
    """Take what others give back, for ever: a thread of a rank that ended just after the limit was reached, for example."""
    while True:
        # Asking first: attempts that the kernel refuses are counted, and would be taken for those of a rank.
        if usage.free_processes() and count > 0:
            count -= take_threads(count)
        time.sleep(_POLL_SECONDS)


def main(arguments: list[str]) -> None:
    """Take and hold the resource until killed, at the latest when the agent ends."""
    parent, what, count = int(arguments[0]), arguments[1], int(arguments[2])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it ended before the call of prctl
        return
    if what == "threads":
        taken = take_threads(count)
        print("holds", what, flush=True)
        keep_taking_threads(count - taken)
    held = take_memory(count)
    print("holds", what, flush=True)
    while held:
        signal.pause()
