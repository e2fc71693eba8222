"""Make torch.accelerator, and everything in torch that uses it, report CUDA."""

from __future__ import annotations

from typing import Any

import torch

from . import devices, memory, streams


def _device_index(device: Any = None) -> int:
    return devices.index_of(device)


def install() -> None:
    """Replace the C functions that torch.accelerator uses.

    The Python functions of torch.accelerator, DataLoader's pinning, DeviceMesh and checkpointing call these. The C functions only know
    devices that torch was built for.
    """
    c: Any = torch._C
    accelerator = devices.real_device("cuda")
    answers: dict[str, Any] = {
        "_get_accelerator": lambda check=None: accelerator,
        "_accelerator_getAccelerator": lambda: accelerator,
        "_accelerator_getDeviceIndex": devices.current,
        "_accelerator_setDeviceIndex": devices.make_current,
        "_accelerator_exchangeDevice": devices.make_current,
        "_accelerator_maybeExchangeDevice": lambda index: devices.make_current(index) if index >= 0 else -1,
        "_accelerator_getStream": streams.default_stream,
        "_accelerator_setStream": lambda stream: None,
        "_accelerator_synchronizeDevice": _device_index,
        "_accelerator_isAllocatorInitialized": lambda: True,
        "_accelerator_emptyCache": lambda: None,
        "_accelerator_emptyHostCache": lambda: None,
        "_accelerator_getDeviceStats": memory.stats,
        "_accelerator_resetAccumulatedStats": lambda index: None,
        "_accelerator_resetPeakStats": memory.reset_peak,
        "_accelerator_getMemoryInfo": memory.free_and_total,
    }
    for name, answer in answers.items():
        if hasattr(c, name):
            setattr(c, name, answer)
