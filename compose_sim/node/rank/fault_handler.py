"""Break a rank from within: on its main thread, in the user's code, when the agent's signal announces a note.

The handler runs as soon as the main thread executes Python. It removes the note, which shows the agent that the fault was
delivered. The fault happens at the line that the user's code is executing, or that it returns to from composesim's code.
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
from ..shared.fault_note import SIGNAL, RankAction, file_of, taken
from ..shared.frames import OUR_FOLDER, ignores_errors, is_user_code

_PASS_THROUGH = {"sleep"}  # the observers' own time.sleep, in which a script may spend hours
_POLL_SECONDS = 0.1

_file = Path()
_process = 0
_events: EventLog | None = None


class InjectedFault(RuntimeError):
    """The exception that a rank raises on request."""

    __module__ = "composesim"  # as tracebacks show it


def install(events: EventLog) -> None:
    """Handle the agent's signal from now on. Must be called in the main thread of a rank."""
    global _file, _process, _events
    _events = events
    _process = os.getpid()
    _file = file_of(events, _process)
    signal.signal(SIGNAL, _on_signal)


def _on_signal(_: int, frame: FrameType | None) -> None:
    if os.getpid() != _process or not _file.exists():  # a child that the script forked, or the note was withdrawn
        return
    caller = _caller_of_ours(frame)
    if caller is None:
        _act()
    elif sys.gettrace() is not _trace_nothing:
        _act_in(caller)


def _caller_of_ours(frame: FrameType | None) -> FrameType | None:
    """
    Return the frame that called the outermost function of composesim, a destructor or a callback of the garbage collector.

    None if none is on the stack. An exception in these would be lost, and a rank that hangs in one would seem to wait for others.
    """
    caller = None
    while frame is not None and frame.f_code.co_filename not in _AROUND_SCRIPTS:
        code = frame.f_code
        is_ours = code.co_filename.startswith(OUR_FOLDER) and code.co_name not in _PASS_THROUGH
        if is_ours or ignores_errors(code):
            caller = frame.f_back
        frame = frame.f_back
    return caller


def _act_in(caller: FrameType) -> None:
    """Act as soon as the main thread is back in this frame, like a debugger's breakpoint."""
    before = sys.gettrace(), caller.f_trace, caller.f_trace_opcodes

    def trace(_: FrameType, event: str, __: Any) -> Any:
        if event == "exception":  # a `for` loop ignores what is raised while its iterator's StopIteration is traced
            return trace
        sys.settrace(before[0])
        caller.f_trace, caller.f_trace_opcodes = before[1:]
        _act()
        return None

    caller.f_trace, caller.f_trace_opcodes = trace, True
    sys.settrace(_trace_nothing)


def _trace_nothing(*_: Any) -> None:
    """Leave frames that begin in the meantime untraced."""


def _act() -> None:
    note = taken(_file)
    try:
        _file.rename(note)
        values = json.loads(note.read_text())
        action = ACTIONS[values["action"]]
    except (OSError, ValueError, KeyError):  # withdrawn at this moment
        return
    action(values, note)


def _raise(values: Mapping[str, Any], _: Path) -> None:
    raise InjectedFault(f"raised on purpose ({values['id']})")


def _gpu_error(values: Mapping[str, Any], _: Path) -> None:
    from . import gpu_errors

    raise gpu_errors.error(values["kind"])


def _exit(values: Mapping[str, Any], _: Path) -> None:
    os._exit(int(values["code"]))


def _hang(_: Mapping[str, Any], note: Path) -> None:
    while note.exists():
        time.sleep(_POLL_SECONDS)


def _lock_gil(_: Mapping[str, Any], note: Path) -> None:
    sleep = ctypes.PyDLL(None).sleep  # PyDLL keeps the GIL; the agent's next signal interrupts this sleep
    while note.exists():
        sleep(3600)


def _flip_bits(_: Mapping[str, Any], note: Path) -> None:
    from . import bit_flips

    bit_flips.begin(note)


def _gpu_slow(values: Mapping[str, Any], note: Path) -> None:
    from . import slow_gpu

    slow_gpu.begin(note, float(values["by"]))


def _debug(_: Mapping[str, Any], note: Path) -> None:
    """Stop at the line that the script is executing, as if it called `breakpoint()`."""
    from .debugging import debugger

    note.unlink()
    frame: FrameType | None = sys._getframe()
    while frame is not None and not is_user_code(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is not None and _events is not None:
        debugger.stop_at(frame, _events)


_AROUND_SCRIPTS = {
    OUR_FOLDER + name
    for name in (
        "__main__.py",
        "rank/script_runner.py",
        "starters/fork_server.py",
    )
}
ACTIONS: dict[RankAction, Callable[[Mapping[str, Any], Path], None]] = {
    "raise": _raise,
    "gpu-error": _gpu_error,
    "exit": _exit,
    "hang": _hang,
    "lock-gil": _lock_gil,
    "flip-bits": _flip_bits,
    "gpu-slow": _gpu_slow,
    "debug": _debug,
}
