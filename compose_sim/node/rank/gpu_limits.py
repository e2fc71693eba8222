"""Limit the GPU memory and the CPUs of a rank that shares a GPU, when the script first uses CUDA.

COMPOSESIM_GPU_FRACTION is the fraction of the memory, COMPOSESIM_GPU_CROWD the rank's place among those that share
CPUs.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from pathlib import Path
from typing import Any

from .torch_hooks import points

_YIELD = 2  # cudaDeviceScheduleYield, and the driver's CU_CTX_SCHED_YIELD


def install() -> None:
    """Set the limits once the script first uses CUDA, if there are any."""
    fraction = float(os.environ.get("COMPOSESIM_GPU_FRACTION") or 0)
    crowd = os.environ.get("COMPOSESIM_GPU_CROWD", "")
    if fraction or crowd:
        points.CUDA_INITIALIZED.subscribe(lambda *_: _initialize(fraction, crowd), in_children=True)


def _initialize(fraction: float, crowd: str) -> points.Steps:
    """Set the limits when torch initializes CUDA; before that, a rank may still fork."""
    if crowd:
        _limit_cpus(crowd)
    yield
    if fraction:
        torch: Any = sys.modules["torch"]
        torch._C._cuda_setMemoryFraction(fraction, _own_device())


def explain(error: BaseException) -> str:
    """Return that the GPU is shared, and how much memory each rank may use, if that is what a rank has run out of; else ""."""
    torch: Any = sys.modules.get("torch")
    out_of_memory = getattr(torch, "OutOfMemoryError", None)
    fraction, crowd = float(os.environ.get("COMPOSESIM_GPU_FRACTION") or 0), os.environ.get("COMPOSESIM_GPU_CROWD", "")
    if out_of_memory is None or not isinstance(error, out_of_memory) or not (fraction or crowd):
        return ""
    share = ""
    if fraction:
        total: int = torch.cuda.get_device_properties(_own_device()).total_memory
        share = f": each rank may use {fraction:.0%} of it, {total * fraction / (1 << 30):.1f} GiB"
    return (
        f"Ranks of several nodes share this GPU{share}. On a cluster with a GPU per rank it has all of the memory: "
        "run fewer nodes (--nodes), or try it with smaller batches."
    )


def _own_device() -> int:
    """Return the index of this rank's device among those of the node: the local rank, as in most scripts."""
    count = len([each for each in os.environ.get("COMPOSESIM_GPUS", "").split(",") if each])
    return int(os.environ.get("LOCAL_RANK", "0")) % max(1, count)


def _limit_cpus(crowd: str) -> None:
    """Bind the rank to some of the CPUs, and let its threads yield while they wait for the GPU.

    By default, two threads of each rank spin while they wait, so that many ranks on few CPUs slow each other down. With
    this setting both yield, as NCCL's always does. In containers, the kernel lets a thread yield only to those of the
    same container, so each rank is bound to separate CPUs, with all threads and processes that it starts from now on.
    """
    first, ranks = map(int, crowd.split("/"))
    place = first + int(os.environ.get("LOCAL_RANK", "0"))
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, cpus_of(sorted(os.sched_getaffinity(0)), place, ranks))
    runtime = loaded_library("libcudart.so")
    if runtime is not None and _own_device() == 0:
        runtime.cudaSetDeviceFlags(_YIELD)
        return
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libcuda.so.1").cuDevicePrimaryCtxSetFlags_v2(_own_device(), _YIELD)


def cpus_of(cpus: list[int], place: int, ranks: int) -> list[int]:
    """Return the CPUs of the rank at this place; a shared one if there are more ranks than CPUs."""
    if ranks >= len(cpus):
        return [cpus[place % len(cpus)]]
    return cpus[place * len(cpus) // ranks : (place + 1) * len(cpus) // ranks]


def loaded_library(name: str) -> Any:
    """Return the loaded library of this name, which may come with torch."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.rpartition(" ")[2]
        if f"/{name}" in path:
            return ctypes.CDLL(path)
    return None
