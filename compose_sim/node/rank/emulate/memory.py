"""Report the memory of emulated devices: a share of the machine's memory, and the tensors that are alive when it is
queried.
"""

from __future__ import annotations

import collections
import gc
import os
from typing import Any

import torch

from ...shared.import_hooks import replace
from . import devices
from .devices import index_of

_COUNTED = ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes")
_NOT_COUNTED = ("allocation", "segment", "active", "inactive_split", "inactive_split_bytes")
_peak: dict[int, int] = {}


def total() -> int:
    """Return each device's share of the machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // max(1, devices.count())


def allocated(device: Any = None) -> int:
    """Return the bytes of all tensors on the device that Python can reach."""
    if not devices.has_begun():
        return 0
    index = index_of(device)
    sizes: dict[int, int] = {}
    with torch._C.DisableTorchFunction():
        for each in gc.get_objects():
            if _has_memory(type(each)) and each._composesim_device == index and each.device.type == "cpu":
                try:
                    storage = torch.Tensor.untyped_storage(each)
                    sizes[storage.data_ptr()] = storage.nbytes()
                except (RuntimeError, NotImplementedError):  # sparse tensors have no storage
                    continue
    found = sum(sizes.values())
    _peak[index] = max(found, _peak.get(index, 0))
    return found


def _has_memory(kind: Any) -> bool:
    """Return whether objects of this type are tensors with memory, not wrappers of other tensors or fake ones."""
    return issubclass(kind, torch.Tensor) and kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__


def peak(device: Any = None) -> int:
    """Return the maximum of all queries."""
    if not allocated(device) and not devices.has_begun():
        return 0
    return _peak[index_of(device)]


def reset_peak(device: Any = None) -> None:
    _peak.pop(index_of(device), None)


def stats(device: Any = None) -> dict[str, Any]:
    """Return the keys of torch.cuda.memory_stats, with 0 for what is not counted; none until CUDA is initialized."""
    if not devices.has_begun():
        return collections.OrderedDict()
    now, most = allocated(device), peak(device)
    found: dict[str, Any] = collections.OrderedDict()
    for kind in (*_COUNTED, *_NOT_COUNTED):
        for pool in ("all", "large_pool", "small_pool"):
            counted = kind in _COUNTED and pool == "all"
            found[f"{kind}.{pool}.current"] = now if counted else 0
            found[f"{kind}.{pool}.peak"] = most if counted else 0
            found[f"{kind}.{pool}.allocated"] = most if counted else 0
            found[f"{kind}.{pool}.freed"] = most - now if counted else 0
    counts = ("alloc_retries", "ooms", "sync_all_streams", "device_alloc", "device_free")
    found |= dict.fromkeys((*(f"num_{name}" for name in counts), "max_split_size"), 0)
    return collections.OrderedDict(sorted(found.items()))


def summary(device: Any = None, abbreviated: bool = False) -> str:
    index = index_of(device)
    return f"cuda:{index} is emulated on the CPU: {allocated(index)} bytes of memory in use, {peak(index)} at most when asked"


def free_and_total(device: Any = None) -> tuple[int, int]:
    whole = total()
    return max(0, whole - allocated(device)), whole


def nothing(*arguments: Any, **options: Any) -> None:
    """Do nothing."""


def install() -> None:
    """Replace the functions of torch.cuda that query CUDA's allocator."""
    answers: dict[str, Any] = {
        "memory_allocated": allocated,
        "max_memory_allocated": peak,
        "memory_reserved": allocated,
        "max_memory_reserved": peak,
        "memory_cached": allocated,
        "max_memory_cached": peak,
        "reset_peak_memory_stats": reset_peak,
        "reset_max_memory_allocated": reset_peak,
        "reset_max_memory_cached": reset_peak,
        "reset_accumulated_memory_stats": nothing,
        "memory_stats": stats,
        "memory_summary": summary,
        "mem_get_info": free_and_total,
        "empty_cache": nothing,
        "set_per_process_memory_fraction": nothing,
        "get_allocator_backend": lambda: "native",
        "list_gpu_processes": lambda device=None: f"GPU:{index_of(device)} is emulated: no other process shares it",
        "memory_snapshot": lambda *arguments, **options: [],
        "_record_memory_history": nothing,
        "_snapshot": lambda *arguments, **options: {
            "segments": [],
            "device_traces": [[] for _ in range(devices.count())],
        },
    }
    replace(answers, torch.cuda, torch.cuda.memory)
