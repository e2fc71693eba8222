"""Recognize an exception that comes from a gap in the emulation, not from the script."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...shared.emulation import is_on

_HERE = str(Path(__file__).resolve().parent) + os.sep
# What torch raises when it reaches for a part of CUDA that neither this build nor the emulation has
_GAPS = re.compile(
    r"_composesim_|\brank\.emulate\.|has no attribute '_cuda_|not compiled with CUDA enabled|not linked with support for cuda"
    r"|from the 'CUDA' backend|instantiate dummy base class|_for_cpu\S* does not have a sharding strategy"
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


def gap(error: BaseException) -> str:
    """Return what has failed if an exception comes from the emulation itself; "" for every other exception."""
    is_marked = getattr(error, _MARK, False)
    if not is_on() or not (
        is_marked or _GAPS.search(str(error)) or (isinstance(error, _MISTAKES) and _is_from_here(error))
    ):
        return ""
    torch = getattr(sys.modules.get("torch"), "__version__", "of an unknown version")
    return f"composesim could not emulate CUDA with torch {torch}"


@contextmanager
def within_torch() -> Iterator[None]:
    """Mark exceptions of torch's own code that the arguments of the script cannot have caused."""
    try:
        yield
    except _OF_TORCH as error:
        setattr(error, _MARK, True)
        raise


def _is_from_here(error: BaseException) -> bool:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_filename.startswith(_HERE)
