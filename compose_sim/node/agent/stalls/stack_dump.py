"""Dump the stacks of a rank, or of a process that it forked, with a signal that rank/stack_signal.py handles."""

from __future__ import annotations

import ctypes
import linecache
import os
import platform
import re
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

from ...shared.frames import is_user_code
from ...shared.progress_page import STACKS_SIGNAL, WAKE_SIGNAL
from ...shared.regular_files import read_regular

_TGKILL = {"x86_64": 234, "aarch64": 131}
_POLL_SECONDS, _MAX_POLLS = 0.05, 40
_MAX_BYTES = 16 << 20  # of the stacks of all threads
_THREAD = re.compile(r"(Current thread|Thread) 0x([0-9a-f]+)")
_FRAME = re.compile(r'  File "(.*)", line ([0-9]+|\?\?\?) in (.*)')
_ESCAPE = re.compile(r"\\(?:x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})")
_CONT, _DETACH, _SEIZE, _INTERRUPT = 7, 17, 0x4206, 0x4207
_ANY_THREAD = 0x40000000  # __WALL
_STOP_POLL_SECONDS, _MAX_STOP_POLLS = 0.02, 25
_HELPER = "/rank/stack_signal.py"
# System calls by number: nanosleep, clock_nanosleep, futex, and select and pselect6, in which Python before 3.11 sleeps.
_CALLS = {
    "x86_64": {35: "sleeping", 230: "sleeping", 202: "locked", 23: "select", 270: "select"},
    "aarch64": {101: "sleeping", 115: "sleeping", 98: "locked", 72: "select"},
}


@dataclass(frozen=True)
class Frame:
    """One frame of a stack."""

    file: str
    line: int
    function: str

    @property
    def place(self) -> list[object]:
        """[file, line, function, source line]."""
        return [self.file, self.line, self.function, linecache.getline(self.file, self.line).strip()[:120]]


@dataclass(frozen=True)
class Stack:
    """One thread's frames, innermost first."""

    thread: int  # as threading.get_ident() gives it
    current: bool  # whether this thread took the signal
    frames: tuple[Frame, ...]

    @property
    def user_frame(self) -> Frame | None:
        """The innermost frame of the user's code."""
        return next((frame for frame in self.frames if is_user_code(frame.file)), None)


def request(process: int, thread: int, file: Path, descriptor: int) -> Generator[float, None, tuple[Stack, ...]]:
    """
    Let a process write its stacks without the interpreter's lock, and return them, or () if that is impossible.

    Yields seconds to wait. A thread that runs Python code at this moment may crash the process, so ask a helper first.

    The signal is not sent to a process that does not handle it (because it has executed another program) or that has
    replaced our file descriptor.
    """
    if not _handles_signal(process, thread, file, descriptor):
        return ()
    before = size = file.stat().st_size
    try:
        if main_thread_state(process) == "stopped":
            yield from _deliver(thread, lambda: send_signal(process, thread), lambda: file.stat().st_size > before)
        else:
            send_signal(process, thread)
    except OSError:
        return ()
    for _ in range(_MAX_POLLS):
        yield _POLL_SECONDS
        last, size = size, file.stat().st_size
        if before < size == last:
            break
    return read(file, before)


def read(file: Path, start: int) -> tuple[Stack, ...]:
    """Return the stacks in a file from this byte on; none if it is no regular file."""
    try:
        return parse(read_regular(file, _MAX_BYTES, offset=start).decode("utf-8", "replace"))
    except OSError:
        return ()


def wake(process: int, helper: int) -> None:
    """Have the helper thread of a process answer in its page (rank/stack_signal.py), without waiting."""
    with suppress(OSError):  # it has ended
        if _mask(process, helper, "Cgt") & _bit(WAKE_SIGNAL):  # otherwise the signal would end the process
            send_signal(process, helper, WAKE_SIGNAL)


def parse(text: str) -> tuple[Stack, ...]:
    """Parse what `faulthandler` wrote, without the helper thread."""
    stacks: list[Stack] = []
    for block in text.split("\n\n"):
        head, *lines = block.strip("\n").splitlines() or [""]
        thread = _THREAD.match(head)
        if thread:
            frames = tuple(
                Frame(_file(m[1]), int(m[2]), m[3])
                for m in map(_FRAME.match, lines)
                if m and m[2].isdecimal() and len(m[2]) < 10
            )
            stacks.append(Stack(int(thread[2], 16), thread[1] == "Current thread", frames))
    return tuple(stack for stack in stacks if stack.frames and not _is_helper(stack))


def send_signal(process: int, thread: int, number: int = STACKS_SIGNAL) -> None:
    """Send the signal to one thread; raises OSError if it does not exist."""
    libc = ctypes.CDLL(None, use_errno=True)
    call = _TGKILL.get(platform.machine())
    function, first = (libc.syscall, (call,)) if call else (libc.tgkill, ())
    if function(*first, process, thread, int(number)) != 0:
        raise OSError(ctypes.get_errno(), "tgkill")


def main_thread_state(process: int) -> str:
    """Return `stopped`, `traced`, `sleeping`, `locked` (it waits for another thread), `waiting`, `in the kernel` or ""."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        if state in ("T", "t"):
            return "stopped" if state == "T" else "traced"
        call = Path(f"/proc/{process}/task/{process}/syscall").read_text().split()
    except OSError:
        return ""
    if state == "D":
        return "in the kernel"
    if not call[0].isdecimal():  # running
        return ""
    name = _CALLS.get(platform.machine(), {}).get(int(call[0]), "waiting")
    if name == "select":
        return "sleeping" if call[1:5] == ["0x0"] * 4 else "waiting"
    return name


def _handles_signal(process: int, thread: int, file: Path, descriptor: int) -> bool:
    if not (thread and descriptor):
        return False
    try:
        if not Path(f"/proc/{process}/fd/{descriptor}").samefile(file):
            return False
        caught, blocked = (_mask(process, thread, name) & _bit(STACKS_SIGNAL) for name in ("Cgt", "Blk"))
    except OSError:
        return False
    return bool(caught) and not blocked


def _mask(process: int, thread: int, name: str) -> int:
    """Return the signals that a thread catches (`Cgt`) or blocks (`Blk`)."""
    status = Path(f"/proc/{process}/task/{thread}/status").read_text()
    found = re.search(rf"^Sig{name}:\s*([0-9a-f]+)", status, re.MULTILINE)
    return int(found[1], 16) if found else 0


def _bit(number: int) -> int:
    return 1 << (number - 1)


def _is_helper(stack: Stack) -> bool:
    return stack.frames[0].file.endswith(_HELPER) and stack.frames[0].function == "_wait_for_signals"


def _file(text: str) -> str:
    """Return a file name in which `faulthandler` has escaped all characters that are not ASCII."""
    return _ESCAPE.sub(lambda escape: chr(int(escape[0][2:], 16)), text)


def _deliver(thread: int, send: Callable[[], None], written: Callable[[], bool]) -> Generator[float, None, None]:
    """Let a thread of a stopped process handle the signal that `send` sends, until `written`; raise OSError if forbidden.

    It uses ptrace, as a debugger would. Only our helper thread runs for that moment; the user's threads stay stopped.
    """
    _ptrace(_SEIZE, thread)
    try:
        yield from _wait_for_stop(thread)
        send()
        _ptrace(_CONT, thread)
        signal = yield from _wait_for_stop(thread)
        _ptrace(_CONT, thread, signal)
        for _ in range(_MAX_STOP_POLLS):
            yield _STOP_POLL_SECONDS
            if written():
                break
        _ptrace(_INTERRUPT, thread)
        yield from _wait_for_stop(thread)
    finally:
        with suppress(OSError):  # it has ended, or it runs and is detached when this process ends
            _ptrace(_DETACH, thread)


def _wait_for_stop(thread: int) -> Generator[float, None, int]:
    """Wait until a thread stops, and return the signal that it stops for."""
    for _ in range(_MAX_STOP_POLLS):
        found, status = os.waitpid(thread, os.WNOHANG | _ANY_THREAD)
        if found and os.WIFSTOPPED(status):
            return os.WSTOPSIG(status)
        yield _STOP_POLL_SECONDS
    raise OSError("the thread does not stop")


def _ptrace(request: int, thread: int, data: int = 0) -> None:
    function = ctypes.CDLL(None, use_errno=True).ptrace
    function.restype = ctypes.c_long
    function.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
    if function(request, thread, None, data) < 0:
        raise OSError(ctypes.get_errno(), "ptrace")
