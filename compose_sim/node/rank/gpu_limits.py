"""Limit the GPU memory and the CPUs of a rank that shares a GPU, when the script first uses CUDA.

COMPOSESIM_GPU_FRACTION holds the memory that a rank may take; COMPOSESIM_GPU_CROWD the rank's place among those that share CPUs.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path
from typing import Any

from ..shared.import_hooks import after_import

_YIELD = 2  # cudaDeviceScheduleYield, and the driver's CU_CTX_SCHED_YIELD


def install() -> None:
    """In a rank: limit its GPU memory and its part of the CPUs, once the script first uses CUDA; else nothing."""
    fraction = float(os.environ.get("COMPOSESIM_GPU_FRACTION") or 0)
    crowd = os.environ.get("COMPOSESIM_GPU_CROWD", "")
    if fraction or crowd:
        after_import("torch", lambda torch: _prepare(torch, fraction, crowd))


def _prepare(torch: Any, fraction: float, crowd: str) -> None:
    """Torch begins with CUDA in one function, when something first needs it; before that a rank may still fork."""
    begin = getattr(torch._C, "_cuda_init", None)
    if begin is None:  # built without CUDA
        return

    def begin_with_our_limits() -> None:
        if crowd:
            _make_room(crowd)
        begin()
        if fraction:
            torch._C._cuda_setMemoryFraction(fraction, _own_device())

    torch._C._cuda_init = begin_with_our_limits


def _own_device() -> int:
    """The device of this rank among its node's: that of its local rank, as scripts choose theirs."""
    count = len([each for each in os.environ.get("COMPOSESIM_GPUS", "").split(",") if each])
    return int(os.environ.get("LOCAL_RANK", "0")) % max(1, count)


def _make_room(crowd: str) -> None:
    """
    Left alone, two threads of each rank spin while they wait, and many ranks on few CPUs take them from one another.

    Both of them yield, NCCL's own always; in containers the kernel lets a thread yield to those of its own container alone, so that
    each rank keeps to CPUs of its own. Threads and processes that it starts from now on do as well.
    """
    first, ranks = map(int, crowd.split("/"))
    place = first + int(os.environ.get("LOCAL_RANK", "0"))
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, part_of(sorted(os.sched_getaffinity(0)), place, ranks))
    runtime = _loaded("libcudart.so")
    if runtime is not None and _own_device() == 0:
        runtime.cudaSetDeviceFlags(_YIELD)
        return
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libcuda.so.1").cuDevicePrimaryCtxSetFlags_v2(_own_device(), _YIELD)


def part_of(cpus: list[int], place: int, ranks: int) -> list[int]:
    """The CPUs of the rank at this place among so many; one that it shares where there are more ranks than CPUs."""
    if ranks >= len(cpus):
        return [cpus[place % len(cpus)]]
    return cpus[place * len(cpus) // ranks : (place + 1) * len(cpus) // ranks]


def _loaded(name: str) -> Any:
    """The library of that name that this process has loaded already: torch brings its own."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.rpartition(" ")[2]
        if f"/{name}" in path:
            return ctypes.CDLL(path)
    return None
