"""Distinguish the user's stack frames from those of Python, libraries and composesim, and describe exceptions."""

from __future__ import annotations

import functools
import gc
import os
import signal
import sysconfig
import traceback
from pathlib import Path
from types import CodeType

OUR_FOLDER = str(Path(__file__).resolve().parents[1]) + os.sep
_PLUG_INS = str(Path(__file__).resolve().parents[2] / "plugins") + os.sep  # their templates are scripts of the user
_NOT_THE_USERS = (
    OUR_FOLDER,
    *(sysconfig.get_paths()[name] + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    "<",  # <frozen runpy>, <string>
)
_IGNORES_ERRORS = {"__del__", "_remove", "remove"}  # destructors, and the callbacks of weakref's collections
_LIBRARIES = ("/site-packages/", "/dist-packages/")  # of other installations


def is_ours(file: str) -> bool:
    """Return whether a file is part of composesim."""
    return file.startswith(OUR_FOLDER) or (
        file.startswith(_PLUG_INS) and file[len(_PLUG_INS) :].partition("/")[2].startswith("node/")
    )


@functools.lru_cache(maxsize=4096)  # called for every frame of the stack, a few times per step
def is_user_code(file: str) -> bool:
    """Return whether a file is the user's code, and not part of Python, a library or composesim."""
    return not (file.startswith(_NOT_THE_USERS) or is_ours(file) or any(part in file for part in _LIBRARIES))


def ignores_errors(code: CodeType) -> bool:
    """Return whether Python prints and ignores an exception in this: a destructor or a callback of the garbage collector."""
    return code.co_name in _IGNORES_ERRORS or any(code is getattr(each, "__code__", None) for each in gc.callbacks)


def message_of(error: BaseException) -> str:
    """Return the message of an exception, as a traceback prints it."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - the script's own exceptions may not be printable
        return "<exception str() failed>"


def describe(error: BaseException) -> str:
    """Return the type of an exception and the beginning of its message."""
    return f"{type(error).__name__}: {message_of(error)[:300]}"


def describe_with_our_line(error: BaseException) -> str:
    """Return the type and message of an exception, and the innermost line of composesim that it comes through."""
    ours = [frame for frame in traceback.extract_tb(error.__traceback__) if is_ours(frame.filename)]
    return describe(error) + (f" ({ours[-1].filename.rpartition('/')[2]}, line {ours[-1].lineno})" if ours else "")


def is_of_signal_handler(error: BaseException) -> bool:
    """Return whether a signal handler of the script raised an exception, in any code that the signal interrupted."""
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    codes = {getattr(getattr(each, "__func__", each), "__code__", None) for each in handlers} - {None}
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))
