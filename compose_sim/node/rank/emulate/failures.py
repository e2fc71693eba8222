"""End a process in which CUDA cannot be emulated, and recognize exceptions that come from a gap in the emulation."""

from __future__ import annotations

import importlib
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, NoReturn

from ...shared.emulation import is_on
from ...shared.event_log import EventLog
from ...shared.frames import describe_with_our_line, is_ours, is_user_code, message_of
from ..torch_hooks import features, private_names

_FEATURE = "emulate"
_OTHER_WAY = "composesim up --gpus none …"
_HERE = str(Path(__file__).resolve().parent) + os.sep
_PYTHON = sysconfig.get_paths()["stdlib"] + os.sep
_OURS = re.compile(r"_composesim_|\brank\.emulate\.")  # names of ours in a message
# What torch raises when it reaches for a part of CUDA that neither this build nor the emulation has
_GAPS = re.compile(
    r"has no attribute '_cuda_|not compiled with CUDA enabled|not linked with support for cuda"
    r"|from the 'CUDA' backend|instantiate dummy base class|_for_cpu\S{0,99} does not have a sharding strategy"
    r"|Cannot access accelerator device when none is available"
)
# Raised by faulty code. Others that leave the emulation are CUDA's own errors, or the answers of the CPU to the script
_MISTAKES = (AttributeError, KeyError, NameError)
_OF_TORCH = (*_MISTAKES, ImportError, NotImplementedError, TypeError)  # in torch's own code, if it is not what it was
_MARK = "_composesim_gap"
HINT = (
    "This is a gap in composesim's emulation of CUDA, not an error of the script. Please report it with this traceback.\n"
    "A machine with a GPU does not need the emulation. If the script also runs without CUDA, add --gpus none."
)


# An error in which CUDA may play a part; any traceback has a `device` in it, and so has ENOSPC
_OF_DEVICES = re.compile(r"cuda|gpu|(?<!left on )device|nccl", re.IGNORECASE)
_FILE = re.compile(r"[^\s'\"]{1,255}\.py\b")  # multigpu.py


def way_out(error: BaseException) -> str:
    """Return how to run the script without CUDA, if the error may come from CUDA and the script asks whether there is any."""
    if not (is_on() and _OF_DEVICES.search(_FILE.sub("", message_of(error)))):
        return ""
    from . import cuda_module

    if not cuda_module.was_asked_for():
        return ""
    return "CUDA is emulated on the CPU here. The script asks torch.cuda.is_available(): with --gpus none, it may do without."


def require() -> None:
    """End this process, with an event that says why, if ranks want emulated CUDA and this torch lacks what it needs."""
    if not is_on():
        return
    importlib.import_module("torch.utils._device")  # which torch would import later; it has names for the emulation
    if private_names.check(_FEATURE):
        give_up()


def attempt(part: Callable[[], Any]) -> None:
    """Set up a part of the emulation; end this process if that fails, because the script must not run with half of it."""
    try:
        part()
    except Exception as error:  # noqa: BLE001 - torch is not what it was
        features.raised(_FEATURE, describe_with_our_line(error))
        give_up()


def give_up() -> NoReturn:
    """Report that CUDA cannot be emulated, and exit."""
    sentence = features.why_off(_FEATURE)
    if "COMPOSESIM_RUN" in os.environ:
        EventLog.from_environment(os.environ).emit("start-failed", message=sentence, hint=_OTHER_WAY, gap=True)
    raise SystemExit(f"composesim: {sentence}\nTry: {_OTHER_WAY}")


def gap(error: BaseException) -> str:
    """Return what has failed if an exception comes from the emulation itself; "" for every other exception."""
    text, raised_by = message_of(error), _innermost_file(error)
    is_known = _OURS.search(text) or (_GAPS.search(text) and not is_user_code(raised_by))
    is_mistake = isinstance(error, _MISTAKES) and raised_by.startswith(_HERE)
    if not (is_on() and (getattr(error, _MARK, False) or is_known or is_mistake)):
        return ""
    torch = getattr(sys.modules.get("torch"), "__version__", "of an unknown version")
    return f"composesim could not emulate CUDA with torch {torch}"


@contextmanager
def within_torch() -> Iterator[None]:
    """Mark exceptions of torch's own code, unless it has called code of the script."""
    try:
        yield
    except _OF_TORCH as error:
        files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
        if all(is_ours(file) or "/torch/" in file or file.startswith(_PYTHON) for file in files):
            setattr(error, _MARK, True)
        raise


def _innermost_file(error: BaseException) -> str:
    """Return the file that raised an exception; "<none>" if it was not raised."""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    return files[-1] if files else "<none>"
