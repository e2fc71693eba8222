"""Make torch.accelerator, and everything in torch that uses it, report CUDA."""

from __future__ import annotations

from typing import Any

import torch

from ...shared.import_hooks import replace
from . import devices, memory, streams


def install() -> None:
    """Replace the C functions that torch.accelerator uses.

    The Python functions of torch.accelerator, DataLoader's pinning, DeviceMesh and checkpointing call these. The C functions only know
    devices that torch was built for.
    """
    accelerator = devices.real_device("cuda")
    answers: dict[str, Any] = {
        "_get_accelerator": lambda check=None: accelerator,
        "_accelerator_getAccelerator": lambda: accelerator,
        "_accelerator_getDeviceIndex": devices.current,
        "_accelerator_setDeviceIndex": devices.make_current,
        "_accelerator_exchangeDevice": devices.make_current,
        "_accelerator_maybeExchangeDevice": devices.exchange,
        "_accelerator_getStream": streams.current_stream,
        "_accelerator_setStream": streams.set_stream,
        "_accelerator_synchronizeDevice": lambda device=None: devices.index_of(device),
        "_accelerator_isAllocatorInitialized": lambda: True,
        "_accelerator_emptyCache": lambda: None,
        "_accelerator_emptyHostCache": lambda: None,
        "_accelerator_getDeviceStats": memory.stats,
        "_accelerator_resetAccumulatedStats": lambda index: None,
        "_accelerator_resetPeakStats": memory.reset_peak,
        "_accelerator_getMemoryInfo": memory.free_and_total,
    }
    replace(answers, torch._C)
