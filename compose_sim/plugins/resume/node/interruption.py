"""Interrupt a rank as a scheduler does: SIGTERM to all its processes, and SIGKILL after a grace period, or SIGKILL at once."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import resource
import signal
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

from ....node.rank.context import RankContext, place
from ....node.records.resumption import InterruptedHere
from ....node.shared.frames import is_user_code

_POLL_S = 0.02
_WRITING = os.O_WRONLY | os.O_RDWR
_RT_SIGQUEUEINFO, _SI_QUEUE = {"x86_64": 129, "aarch64": 138}, -1  # numbers of Linux


def interrupt(context: RankContext, wanted: dict[str, Any], step: int) -> None:
    """
    Send the signal to the loader's workers and other children first, then to this process.

    Before, wait until the files of `wanted["files"]` (path -> bytes) have their size: a checkpoint may be written by a thread.
    """
    _wait_for(wanted.get("files", {}), wanted.get("patience", 20.0))
    name = wanted["signal"]
    number, children = signal.Signals[f"SIG{name}"], _children()
    handler = signal.getsignal(number)
    code = getattr(getattr(handler, "__func__", handler), "__code__", None)
    handled = number != signal.SIGKILL and code is not None and is_user_code(code.co_filename)
    context.note(InterruptedHere(f"SIG{name}", step, handled, len(children), place()))
    context.flush()
    if number != signal.SIGKILL:
        threading.Thread(target=_kill_after, args=(wanted["grace"],), daemon=True).start()
    for child in children:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            _send(child, number)
    os.kill(os.getpid(), number)


def may_tear(context: RankContext, watched: Any, path: str) -> None:
    """Let the kernel kill this process when half of a file is written, if that is wanted of this file from this step on.

    A thread may write it some steps after the state was taken.
    """
    half = (watched.settings.get("half") or {}).get(path)
    if not half or watched.steps < half["step"]:
        return
    context.note(InterruptedHere("SIGXFSZ", watched.steps, at=place()))
    context.flush()
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (half["bytes"], most))


def follow_opens(context: RankContext, watched: Any) -> None:
    """Look at the files that Python opens for writing; torch.save and safetensors open theirs in other languages."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it, and only the main thread may change that

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], (str, bytes)) and arguments[2] & _WRITING and context.is_here:
            with contextlib.suppress(Exception):  # an exception would forbid the script to open the file
                may_tear(context, watched, os.path.realpath(os.fsdecode(arguments[0])))

    sys.addaudithook(audit)


def _kill_after(seconds: float) -> None:
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)


def _send(process: int, number: int) -> None:
    """Send a signal that does not seem to come from here: a worker of torch's loader takes that of its parent for a shutdown."""
    information = ctypes.create_string_buffer(struct.pack("=6i", number, 0, _SI_QUEUE, 0, 0, os.getuid()), 128)
    call = _RT_SIGQUEUEINFO.get(platform.machine())
    if call is None or ctypes.CDLL(None).syscall(call, process, number, information):
        os.kill(process, number)


def _wait_for(files: dict[str, int], patience: float) -> None:
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline and not all(_size(path) >= size for path, size in files.items()):
        time.sleep(_POLL_S)


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError:
        return -1


def _children() -> list[int]:
    """Return the processes that this one has started."""
    found: list[int] = []
    for path in Path(f"/proc/{os.getpid()}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, path.read_text().split())
    return found
