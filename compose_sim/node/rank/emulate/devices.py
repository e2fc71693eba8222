"""Keep the emulated devices and the current one, and resolve what scripts mean by `cuda`, `cuda:1` or 1."""

from __future__ import annotations

import os
import threading
from typing import Any

import torch

CPU = -1  # the tag of a tensor on the CPU; the tags 0, 1, … mean cuda:0, cuda:1, …, and None means unknown
real_device = torch.device  # names.py replaces torch.device


class _Current(threading.local):
    """The current device of each thread, as in CUDA."""

    index = 0


class _Devices:
    """The devices of this process, and whether it has used them."""

    count = 0
    all: tuple[torch.device, ...] = ()
    process_that_began = 0  # The process that first used CUDA; processes forked from it later may not use CUDA.


_devices = _Devices()
_current = _Current()


def show(count: int) -> None:
    """Show this many devices."""
    _devices.count = count
    _devices.all = tuple(real_device("cuda", index) for index in range(count))


def count() -> int:
    """Return the number of devices."""
    return _devices.count


def device(index: int) -> torch.device:
    """Return the device with this index, as scripts see it."""
    return _devices.all[index]


def current() -> int:
    """Return the current device of this thread."""
    return _current.index


def make_current(index: int) -> int:
    """Make a device the current one of this thread, and return the previous one."""
    before = _current.index
    _current.index = checked(index)
    return before


def exchange(index: int) -> int:
    """Make a device the current one if the index means one; return the previous one, or -1."""
    return make_current(index) if index >= 0 else -1


def begin() -> None:
    """Initialize CUDA: children that are forked later may not use it."""
    if _devices.process_that_began == 0:
        _devices.process_that_began = os.getpid()
    elif is_in_bad_fork():
        raise RuntimeError(
            "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, "
            "you must use the 'spawn' start method"
        )


def has_begun() -> bool:
    """Return whether this process has used CUDA."""
    return _devices.process_that_began == os.getpid()


def is_in_bad_fork() -> bool:
    """Return whether this process was forked from one that had used CUDA."""
    return _devices.process_that_began not in (0, os.getpid())


def checked(index: int) -> int:
    """Return the index, or raise CUDA's error if there is no such device."""
    if not 0 <= index < _devices.count:
        raise _error("CUDA error: invalid device ordinal\nGPU device may be out of range, do you have enough GPUs?")
    return index


def is_cuda(value: Any) -> bool:
    """Return whether `device=value` means a CUDA device."""
    if isinstance(value, str):
        return value.startswith("cuda")
    if isinstance(value, real_device):
        return value.type == "cuda"
    return isinstance(value, int) and not isinstance(value, bool)


def index_of(value: Any) -> int:
    """Return the index of the emulated device that is meant, or CPU for another one, and initialize CUDA if it is used."""
    if value is None or is_cuda(value):
        begin()
    return index_without_use(value)


def index_without_use(value: Any) -> int:
    """Return the index as `index_of` does, as the functions of CUDA do that only take note of a device."""
    if value is None or (isinstance(value, int) and value == -1):
        return _current.index
    if not is_cuda(value):
        return CPU
    if isinstance(value, int):
        return checked(value)
    index = (real_device(value) if isinstance(value, str) else value).index
    return _current.index if index is None else checked(index)


def _error(message: str) -> RuntimeError:
    kind: type[RuntimeError] = getattr(torch, "AcceleratorError", RuntimeError)  # since torch 2.8
    return kind(message)
