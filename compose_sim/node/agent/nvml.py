"""Sample the utilization and memory of this node's GPUs through NVML, which does not set up CUDA in this process.

The values cover whole GPUs: on a shared GPU, they include the other nodes.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any, Optional

Sample = dict[str, Optional[float]]


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class Gpus:
    """The GPUs with these UUIDs that NVML knows."""

    def __init__(self, uuids: list[str]) -> None:
        """Get a handle for each GPU, if the library is installed."""
        self._nvml: Any = None
        self._handles: list[ctypes.c_void_p] = []
        if not uuids:
            return
        try:
            self._nvml = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return
        if self._nvml.nvmlInit_v2() != 0:
            return
        for uuid in uuids:
            handle = ctypes.c_void_p()
            if self._nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)) == 0:
                self._handles.append(handle)

    def sample(self) -> Sample:
        """Return the mean recent utilization, 0 to 1 (None for MIG slices), and the memory in use; {} without a GPU."""
        if not self._handles:
            return {}
        uses, used = [], 0
        for handle in self._handles:
            utilization, memory = _Utilization(), _Memory()
            if self._nvml.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(utilization)) == 0:
                uses.append(utilization.gpu / 100)
            if self._nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0:
                used += memory.used
        return {"gpu_use": sum(uses) / len(uses) if uses else None, "gpu_memory_bytes": used}


_of_this_node: Gpus | None = None


def sample() -> Sample:
    """Return the current usage of this node's GPUs."""
    global _of_this_node
    if _of_this_node is None:
        _of_this_node = Gpus([uuid for uuid in os.environ.get("COMPOSESIM_GPUS", "").split(",") if uuid])
    return _of_this_node.sample()
