"""Answer NVML's queries for emulated devices: torch.cuda.utilization and others, and the package `pynvml`.

The utilization is the share of time in which this process has used a CPU since the previous query. Temperature, power
and clock are constants.
"""

from __future__ import annotations

import os
import time
from types import SimpleNamespace
from typing import Any

import torch

from ...shared.import_hooks import replace
from . import cuda_module, devices, memory

_DRIVER_VERSION = "570.00"
_CELSIUS, _MILLIWATTS, _MEGAHERTZ = 40, 100_000, 1410


class _Use:
    """The CPU time of this process, at the previous query."""

    cpu = time.process_time()
    wall = time.monotonic()


def utilization(device: Any = None) -> int:
    """Return how busy this process was since the previous query, in percent."""
    devices.index_of(device)
    cpu, wall = time.process_time(), time.monotonic()
    busy, passed = cpu - _Use.cpu, wall - _Use.wall
    busy = cpu if busy < 0 else busy  # the previous query was that of the process from which this one was forked
    _Use.cpu, _Use.wall = cpu, wall
    return min(100, round(100 * busy / passed)) if passed > 0 else 0


def _constant(value: int) -> Any:
    def answer(device: Any = None) -> int:
        devices.index_of(device)
        return value

    return answer


def emulate(module: Any) -> None:
    """Patch pynvml once it is imported. What is not emulated is not supported, as on devices that lack it."""

    def unsupported(*arguments: Any) -> Any:
        raise module.NVMLError(module.NVML_ERROR_NOT_SUPPORTED)

    def handle(index: int) -> int:
        if not 0 <= index < devices.count():
            raise module.NVMLError(module.NVML_ERROR_INVALID_ARGUMENT)
        return index

    def by_uuid(uuid: Any) -> int:
        text = uuid.decode() if isinstance(uuid, bytes) else uuid
        return next((index for index in range(devices.count()) if _uuid(index) == text), -1)

    def memory_info(device: int, version: Any = None) -> Any:
        used = memory.allocated(device)
        return SimpleNamespace(total=memory.total(), used=used, free=memory.total() - used)

    answers: dict[str, Any] = {
        **{name: unsupported for name in vars(module) if name.startswith(("nvmlDevice", "nvmlSystem", "nvmlUnit"))},
        **dict.fromkeys(("nvmlInit", "nvmlInitWithFlags", "nvmlShutdown"), memory.nothing),
        "nvmlSystemGetDriverVersion": lambda: _DRIVER_VERSION,
        "nvmlSystemGetCudaDriverVersion": lambda: int(cuda_module.CUDA_VERSION.replace(".", "0")) * 10,
        "nvmlDeviceGetCount": devices.count,
        "nvmlDeviceGetHandleByIndex": handle,
        "nvmlDeviceGetHandleByUUID": lambda uuid: handle(by_uuid(uuid)),
        "nvmlDeviceGetIndex": lambda device: device,
        "nvmlDeviceGetUUID": _uuid,
        "nvmlDeviceGetName": lambda device: cuda_module.NAME,
        "nvmlDeviceGetMemoryInfo": memory_info,
        "nvmlDeviceGetUtilizationRates": lambda device: SimpleNamespace(gpu=utilization(device), memory=0),
        "nvmlDeviceGetTemperature": lambda device, sensor: _CELSIUS,
        "nvmlDeviceGetPowerUsage": lambda device: _MILLIWATTS,
        "nvmlDeviceGetClockInfo": lambda device, kind: _MEGAHERTZ,
        "nvmlDeviceGetCudaComputeCapability": lambda device: cuda_module.CAPABILITY,
        "nvmlDeviceGetComputeRunningProcesses": lambda device: [
            SimpleNamespace(pid=os.getpid(), usedGpuMemory=memory.allocated(device))
        ],
    }
    replace(answers, module)


def _uuid(index: int) -> str:
    return str(cuda_module.get_device_properties(index).uuid)


def install() -> None:
    """Replace the functions of torch.cuda that query NVML."""
    answers = {
        "utilization": utilization,
        "memory_usage": _constant(0),
        "temperature": _constant(_CELSIUS),
        "power_draw": _constant(_MILLIWATTS),
        "clock_rate": _constant(_MEGAHERTZ),
        "device_memory_used": memory.allocated,
    }
    replace(answers, torch.cuda)
