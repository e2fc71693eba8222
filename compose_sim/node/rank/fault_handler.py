"""Make a rank fail on purpose from within its own code, on its main thread: by a signal of ours and a note in the run folder.

The handler runs as soon as the main thread is in Python, and takes the note away: so the agent sees that it was taken. What the
note asks for happens at the line where the person's code is, or that it returns to from a part of ours.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from ..shared.event_log import EventLog
from ..shared.fault_note import SIGNAL, file_of, taken
from ..shared.frames import OUR_FOLDER

_PASS_THROUGH = {"sleep"}  # observers' own time.sleep, in which a script may be for hours
_SWALLOW = {"__del__", "_remove"}  # what is raised in these is printed and forgotten
_LOOK_SECONDS = 0.1

_file = Path()
_process = 0


class InjectedFault(RuntimeError):
    """What a rank raises because it was told to."""

    __module__ = "composesim"  # as a traceback names it


def install(events: EventLog) -> None:
    """From now on this process is a rank that can be told to fail. To be called in its main thread."""
    global _file, _process
    _process = os.getpid()
    _file = file_of(events, _process)
    signal.signal(SIGNAL, _hear)


def _hear(_: int, frame: FrameType | None) -> None:
    if os.getpid() != _process or not _file.exists():  # a child that the script forked; or the note was withdrawn
        return
    caller = _caller_of_ours(frame)
    if caller is None:
        _act()
    elif sys.gettrace() is not _let_be:
        _act_in(caller)


def _caller_of_ours(frame: FrameType | None) -> FrameType | None:
    """
    The frame that the outermost part of ours returns to, or a destructor; None where neither is under way.

    What is raised in these is swallowed; and a rank that hangs in one would seem to wait for others.
    """
    caller = None
    while frame is not None and frame.f_code.co_filename not in _AROUND_SCRIPTS:
        code = frame.f_code
        is_ours = code.co_filename.startswith(OUR_FOLDER) and code.co_name not in _PASS_THROUGH
        if is_ours or code.co_name in _SWALLOW:
            caller = frame.f_back
        frame = frame.f_back
    return caller


def _act_in(caller: FrameType) -> None:
    """Act as soon as the main thread is back in this frame, as a debugger would stop there."""
    before = sys.gettrace(), caller.f_trace, caller.f_trace_opcodes

    def trace(*_: Any) -> None:
        sys.settrace(before[0])
        caller.f_trace, caller.f_trace_opcodes = before[1:]
        _act()

    caller.f_trace, caller.f_trace_opcodes = trace, True
    sys.settrace(_let_be)


def _let_be(*_: Any) -> None:
    """What the frames are traced by that begin meanwhile: not at all."""


def _act() -> None:
    note = taken(_file)
    try:
        _file.rename(note)
        told = json.loads(note.read_text())
        act = ACTS[told["act"]]
    except (OSError, ValueError, KeyError):  # withdrawn this instant
        return
    act(told, note)


def _raise(told: Mapping[str, Any], _: Path) -> None:
    raise InjectedFault(f"raised on purpose ({told['id']})")


def _exit(told: Mapping[str, Any], _: Path) -> None:
    os._exit(int(told["code"]))


def _hang(_: Mapping[str, Any], note: Path) -> None:
    while note.exists():
        time.sleep(_LOOK_SECONDS)


def _hold_lock(_: Mapping[str, Any], note: Path) -> None:
    sleep = ctypes.PyDLL(None).sleep  # PyDLL keeps the interpreter's lock; the agent's next signal ends this sleep
    while note.exists():
        sleep(3600)


_AROUND_SCRIPTS = {
    OUR_FOLDER + name
    for name in (
        "__main__.py",
        "rank/script_runner.py",
        "starters/fork_server.py",
        "frameworks/horovod/sshd_starter.py",
    )
}
ACTS: dict[str, Callable[[Mapping[str, Any], Path], None]] = {
    "raise": _raise,
    "exit": _exit,
    "hang": _hang,
    "lock-gil": _hold_lock,
}
