"""Where do the threads of a rank, or of a process it forked, stand? Asked by signal, read from the file that stack_signal.py names."""

from __future__ import annotations

import ctypes
import linecache
import os
import platform
import re
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from ...shared.frames import is_user_code
from ...shared.progress_page import STACKS_SIGNAL
from . import ptrace_signal

_TGKILL = {"x86_64": 234, "aarch64": 131}
_LOOK_SECONDS, _PATIENCE_LOOKS = 0.05, 40
_THREAD = re.compile(r"(Current thread|Thread) 0x([0-9a-f]+)")
_FRAME = re.compile(r'  File "(.*)", line ([0-9]+|\?\?\?) in (.*)')
_ESCAPE = re.compile(r"\\(?:x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})")
_HELPER = os.sep + "stack_signal.py"
# System calls by number: nanosleep, clock_nanosleep; futex; select and pselect6, in which Python sleeps before 3.11.
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
        """[file, line, function, the line's text]."""
        return [self.file, self.line, self.function, linecache.getline(self.file, self.line).strip()[:120]]


@dataclass(frozen=True)
class Stack:
    """One thread's frames, innermost first."""

    thread: int  # as threading.get_ident() gives it
    current: bool  # whether this thread took the signal
    frames: tuple[Frame, ...]

    @property
    def persons(self) -> Frame | None:
        """The innermost frame of the person's own code."""
        return next((frame for frame in self.frames if is_user_code(frame.file)), None)


def ask(process: int, thread: int, file: Path, descriptor: int) -> Generator[float, None, tuple[Stack, ...]]:
    """
    Have the stacks of a process written. Yields seconds to wait; returns the stacks, none where they cannot be had.

    A process that does not catch the signal (it has executed another program) or that has put another file
    where ours was, is not asked.
    """
    if not _would_answer(process, thread, file, descriptor):
        return ()
    before = size = file.stat().st_size
    try:
        if what_it_does(process) == "stopped":
            yield from ptrace_signal.take_signal(
                thread, lambda: send_signal(process, thread), lambda: file.stat().st_size > before
            )
        else:
            send_signal(process, thread)
    except OSError:
        return ()
    for _ in range(_PATIENCE_LOOKS):
        yield _LOOK_SECONDS
        last, size = size, file.stat().st_size
        if before < size == last:
            break
    with file.open("rb") as text:
        text.seek(before)
        return parse(text.read().decode("utf-8", "replace"))


def parse(text: str) -> tuple[Stack, ...]:
    """What `faulthandler` wrote, without the thread that only waits for its signal."""
    stacks: list[Stack] = []
    for block in text.split("\n\n"):
        head, *lines = block.strip("\n").splitlines() or [""]
        thread = _THREAD.match(head)
        if thread:
            frames = tuple(
                Frame(_file(m[1]), int(m[2]), m[3]) for m in map(_FRAME.match, lines) if m and m[2].isdigit()
            )
            stacks.append(Stack(int(thread[2], 16), thread[1] == "Current thread", frames))
    return tuple(stack for stack in stacks if stack.frames and not _is_ours(stack))


def send_signal(process: int, thread: int) -> None:
    """Send the signal to one thread; OSError where there is none."""
    libc = ctypes.CDLL(None, use_errno=True)
    number = _TGKILL.get(platform.machine())
    function, first = (libc.syscall, (number,)) if number else (libc.tgkill, ())
    if function(*first, process, thread, int(STACKS_SIGNAL)) != 0:
        raise OSError(ctypes.get_errno(), "tgkill")


def what_it_does(process: int) -> str:
    """What a process's main thread does: stopped, traced, sleeping (for a time), locked (it waits for a thread), waiting."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        if state in ("T", "t"):
            return "stopped" if state == "T" else "traced"
        call = Path(f"/proc/{process}/task/{process}/syscall").read_text().split()
    except OSError:
        return ""
    if state == "D":
        return "in the kernel"
    if not call[0].isdigit():  # it is running
        return ""
    name = _CALLS.get(platform.machine(), {}).get(int(call[0]), "waiting")
    if name == "select":
        return "sleeping" if call[1:5] == ["0x0"] * 4 else "waiting"
    return name


def _would_answer(process: int, thread: int, file: Path, descriptor: int) -> bool:
    if not (thread and descriptor):
        return False
    try:
        if not Path(f"/proc/{process}/fd/{descriptor}").samefile(file):
            return False
        status = Path(f"/proc/{process}/task/{thread}/status").read_text()
    except OSError:
        return False
    masks = {name: int(mask, 16) for name, mask in re.findall(r"^Sig(Cgt|Blk):\s*([0-9a-f]+)", status, re.MULTILINE)}
    bit = 1 << (STACKS_SIGNAL - 1)
    return bool(masks.get("Cgt", 0) & bit) and not masks.get("Blk", 0) & bit


def _is_ours(stack: Stack) -> bool:
    return stack.frames[0].file.endswith(_HELPER) and stack.frames[0].function == "_wait_for_signals"


def _file(text: str) -> str:
    """The name of a file, in which `faulthandler` has escaped all that is not ASCII."""
    return _ESCAPE.sub(lambda escape: chr(int(escape[0][2:], 16)), text)
