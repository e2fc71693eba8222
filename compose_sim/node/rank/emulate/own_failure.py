"""Recognize an exception that comes from a gap in the emulation, not from the script."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ...shared.emulation import is_on

_HERE = str(Path(__file__).resolve().parent) + os.sep
# What torch raises when it reaches for a part of CUDA that neither this build nor the emulation has
_GAPS = re.compile(
    r"_composesim_|has no attribute '_cuda_|not compiled with CUDA enabled|not linked with support for cuda"
    r"|from the 'CUDA' backend|instantiate dummy base class|_for_cpu\S* does not have a sharding strategy"
    r"|Cannot access accelerator device when none is available"
)
# Raised by faulty code. Others that leave the emulation are CUDA's own errors, or the answers of the CPU to the script
_MISTAKES = (AttributeError, KeyError, NameError)
WORDS = "This is a gap in composesim's emulation of CUDA, not an error of the script."


def hint(error: BaseException) -> str:
    """Return what to do about an exception of the emulation itself; "" for every other."""
    if not is_on() or not (_GAPS.search(str(error)) or (isinstance(error, _MISTAKES) and _is_from_here(error))):
        return ""
    return f"{WORDS} Please report it with this traceback. A machine with a GPU does not need the emulation."


def _is_from_here(error: BaseException) -> bool:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_filename.startswith(_HERE)
