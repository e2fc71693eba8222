"""Which emulated devices are there, which is the current one, and which does a script mean by `cuda`, `cuda:1` or 1?"""

from __future__ import annotations

import os
import threading
from typing import Any

import torch

CPU = -1  # the tag of a tensor that is on the CPU, beside 0, 1, … for cuda:0, cuda:1, …; None where nobody has seen it
real_device = torch.device  # generators.py puts another name in its place


class _Current(threading.local):
    """The current device of each thread, as in CUDA."""

    index = 0


class _Devices:
    """The devices of this process, and since when it uses them."""

    count = 0
    all: tuple[torch.device, ...] = ()
    process_that_began = 0  # the process that first used CUDA; a child that was forked from it may not


_devices = _Devices()
_current = _Current()


def show(count: int) -> None:
    """Have so many devices."""
    _devices.count = count
    _devices.all = tuple(real_device("cuda", index) for index in range(count))


def count() -> int:
    """How many there are."""
    return _devices.count


def device(index: int) -> torch.device:
    """The device of this index, as a script sees it."""
    return _devices.all[index]


def current() -> int:
    """The current device of this thread."""
    return _current.index


def make_current(index: int) -> int:
    """Make it the current device of this thread; the one before."""
    before = _current.index
    _current.index = checked(index)
    return before


def begin() -> None:
    """CUDA is used: from here on children may not be forked to use it."""
    if _devices.process_that_began == 0:
        _devices.process_that_began = os.getpid()
    elif is_in_bad_fork():
        raise RuntimeError(
            "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, "
            "you must use the 'spawn' start method"
        )


def has_begun() -> bool:
    """Whether this process has used CUDA."""
    return _devices.process_that_began == os.getpid()


def is_in_bad_fork() -> bool:
    """Whether this process was forked from one that had used CUDA."""
    return _devices.process_that_began not in (0, os.getpid())


def checked(index: int) -> int:
    """The index, or CUDA's error for one that no device has."""
    if not 0 <= index < _devices.count:
        raise _error("CUDA error: invalid device ordinal\nGPU device may be out of range, do you have enough GPUs?")
    return index


def is_cuda(value: Any) -> bool:
    """Whether a script that says `device=value` means a CUDA device."""
    if isinstance(value, str):
        return value.startswith("cuda")
    if isinstance(value, real_device):
        return value.type == "cuda"
    return isinstance(value, int) and not isinstance(value, bool)


def index_of(value: Any) -> int:
    """The index of the emulated device that is meant, CPU for any other; raises what CUDA raises for one that is not there."""
    if value is None or (isinstance(value, int) and value == -1):
        begin()
        return _current.index
    if not is_cuda(value):
        return CPU
    begin()
    if isinstance(value, int):
        return checked(value)
    index = (real_device(value) if isinstance(value, str) else value).index
    return _current.index if index is None else checked(index)


def _error(message: str) -> RuntimeError:
    kind: type[RuntimeError] = getattr(torch, "AcceleratorError", RuntimeError)  # since torch 2.8
    return kind(message)
