"""How does one thread of a stopped process take a signal, while the process stays stopped? As a debugger would have it: by ptrace.

Only our own thread runs for that moment; all others, the person's, stay where they are.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Generator
from typing import Callable

_CONT, _DETACH, _SEIZE, _INTERRUPT = 7, 17, 0x4206, 0x4207
_ANY_THREAD = 0x40000000  # __WALL
_LOOK_SECONDS, _MOST_LOOKS = 0.02, 25


def take_signal(thread: int, send: Callable[[], None], written: Callable[[], bool]) -> Generator[float, None, None]:
    """Have a thread of a stopped process take what `send` sends, until its answer is `written`. OSError where that is forbidden."""
    _ptrace(_SEIZE, thread)
    try:
        yield from _until_it_halts(thread)
        send()
        _ptrace(_CONT, thread)
        signal = yield from _until_it_halts(thread)
        _ptrace(_CONT, thread, signal)
        for _ in range(_MOST_LOOKS):
            yield _LOOK_SECONDS
            if written():
                break
        _ptrace(_INTERRUPT, thread)
        yield from _until_it_halts(thread)
    finally:
        with contextlib.suppress(OSError):  # it has ended; or runs, and is let go with us
            _ptrace(_DETACH, thread)


def _until_it_halts(thread: int) -> Generator[float, None, int]:
    """Wait for a thread's next halt: the signal that it halts for."""
    for _ in range(_MOST_LOOKS):
        found, status = os.waitpid(thread, os.WNOHANG | _ANY_THREAD)
        if found and os.WIFSTOPPED(status):
            return os.WSTOPSIG(status)
        yield _LOOK_SECONDS
    raise OSError("the thread does not halt")


def _ptrace(request: int, thread: int, data: int = 0) -> None:
    function = ctypes.CDLL(None, use_errno=True).ptrace
    function.restype = ctypes.c_long
    function.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
    if function(request, thread, None, data) < 0:
        raise OSError(ctypes.get_errno(), "ptrace")
