"""Deliver a signal to one thread of a stopped process with ptrace, as a debugger would; the process stays stopped.

Only our helper thread runs for that moment; the user's threads stay stopped.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Generator
from typing import Callable

_CONT, _DETACH, _SEIZE, _INTERRUPT = 7, 17, 0x4206, 0x4207
_ANY_THREAD = 0x40000000  # __WALL
_POLL_SECONDS, _MOST_POLLS = 0.02, 25


def deliver(thread: int, send: Callable[[], None], written: Callable[[], bool]) -> Generator[float, None, None]:
    """Let a thread of a stopped process handle the signal that `send` sends, until `written`; raises OSError if forbidden."""
    _ptrace(_SEIZE, thread)
    try:
        yield from _wait_for_stop(thread)
        send()
        _ptrace(_CONT, thread)
        signal = yield from _wait_for_stop(thread)
        _ptrace(_CONT, thread, signal)
        for _ in range(_MOST_POLLS):
            yield _POLL_SECONDS
            if written():
                break
        _ptrace(_INTERRUPT, thread)
        yield from _wait_for_stop(thread)
    finally:
        with contextlib.suppress(OSError):  # it has ended, or it runs and is detached when this process ends
            _ptrace(_DETACH, thread)


def _wait_for_stop(thread: int) -> Generator[float, None, int]:
    """Wait until a thread stops, and return the signal that it stops for."""
    for _ in range(_MOST_POLLS):
        found, status = os.waitpid(thread, os.WNOHANG | _ANY_THREAD)
        if found and os.WIFSTOPPED(status):
            return os.WSTOPSIG(status)
        yield _POLL_SECONDS
    raise OSError("the thread does not stop")


def _ptrace(request: int, thread: int, data: int = 0) -> None:
    function = ctypes.CDLL(None, use_errno=True).ptrace
    function.restype = ctypes.c_long
    function.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
    if function(request, thread, None, data) < 0:
        raise OSError(ctypes.get_errno(), "ptrace")
