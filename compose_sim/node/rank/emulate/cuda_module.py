"""Replace the functions of torch.cuda. The device names show that they are emulated."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import torch

from ...shared.import_hooks import replace
from . import devices, memory
from .devices import index_of
from .memory import nothing

NAME = "CUDA emulated on the CPU"
CAPABILITY = (8, 0)  # of a device with bfloat16 and TF32, by which scripts choose types
CUDA_VERSION = "12.8"
CUDNN_VERSION = 91002
NCCL_VERSION = (2, 27, 5)


@dataclass(frozen=True)
class DeviceProperties:
    """The result of torch.cuda.get_device_properties."""

    name: str
    total_memory: int
    major: int = CAPABILITY[0]
    minor: int = CAPABILITY[1]
    multi_processor_count: int = 108
    is_integrated: int = 0
    is_multi_gpu_board: int = 0
    max_threads_per_multi_processor: int = 2048
    max_threads_per_block: int = 1024
    warp_size: int = 32
    regs_per_multiprocessor: int = 65536
    shared_memory_per_block: int = 49152
    shared_memory_per_block_optin: int = 166912
    shared_memory_per_multiprocessor: int = 167936
    L2_cache_size: int = 41943040
    gcnArchName: str = field(default="", repr=False)  # noqa: N815 - the name that torch gives it
    uuid: str = ""
    pci_bus_id: int = 0
    pci_device_id: int = 0
    pci_domain_id: int = 0


class device:  # noqa: N801 - the name that torch gives it
    """Make a device the current one, as `with torch.cuda.device(1):` does."""

    def __init__(self, device: Any) -> None:
        self.idx = devices.CPU if device is None or device == -1 else devices.index_without_use(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        if self.idx >= 0:
            devices.begin()
            self.prev_idx = devices.make_current(self.idx)

    def __exit__(self, *error: object) -> None:
        if self.idx >= 0:
            devices.make_current(self.prev_idx)


class device_of(device):  # noqa: N801 - the name that torch gives it
    """Make the tensor's device the current one; do nothing for a CPU tensor."""

    def __init__(self, obj: Any) -> None:
        super().__init__(obj.get_device() if obj.is_cuda else -1)


def set_device(device: Any) -> None:
    """Make a device the current one of this thread; like in torch, do nothing for a negative index."""
    if isinstance(device, int) and device < 0:
        return
    index = index_of(device)
    if index < 0:
        raise ValueError(f"Expected a cuda device, but got: {device}")
    devices.make_current(index)


def current_device() -> int:
    devices.begin()
    return devices.current()


def get_device_capability(device: Any = None) -> tuple[int, int]:
    index_of(device)
    return CAPABILITY


def get_device_properties(device: Any = None) -> DeviceProperties:
    index = index_of(device)
    return DeviceProperties(NAME, memory.total(), uuid=f"composesim-emulated-{index}", pci_bus_id=index)


def synchronize(device: Any = None) -> None:
    """Do nothing: an emulated device has finished when a call returns."""
    index_of(device)


def _yes(*arguments: Any, **options: Any) -> bool:
    return True


def install() -> None:
    """Replace torch.cuda's own functions, which have no hooks."""
    cuda: Any = torch.cuda
    os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")  # torch.cuda sets it when it is initialized
    answers: dict[str, Any] = {
        "is_available": _yes,
        "_is_compiled": _yes,
        "is_bf16_supported": _yes,
        "is_tf32_supported": _yes,
        "is_initialized": devices.has_begun,
        "_is_in_bad_fork": devices.is_in_bad_fork,
        "device_count": devices.count,
        "init": devices.begin,
        "_lazy_init": devices.begin,
        "_lazy_call": lambda callable, **options: callable(),
        "set_device": set_device,
        "current_device": current_device,
        "device": device,
        "device_of": device_of,
        "get_device_name": lambda device=None: get_device_properties(device).name,
        "get_device_capability": get_device_capability,
        "get_device_properties": get_device_properties,
        "synchronize": synchronize,
        "can_device_access_peer": lambda device, peer_device: index_of(device) != index_of(peer_device),
        "get_arch_list": lambda: ["sm_80"],
        "get_gencode_flags": lambda: "-gencode compute=compute_80,code=sm_80",
        "ipc_collect": nothing,
        "set_sync_debug_mode": nothing,
        "get_sync_debug_mode": lambda: 0,
        "_sleep": nothing,
        "_get_device": lambda wanted: devices.device(index_of(wanted)),
        "_exchange_device": devices.exchange,
        "_maybe_exchange_device": devices.exchange,
        "has_half": True,
        "_check_capability": nothing,
        "_check_cubins": nothing,
    }
    replace(answers, cuda, cuda.random, cuda.memory, cuda.nccl)  # the other three have imported some of the names
    cuda.nccl.version = lambda: NCCL_VERSION
    cuda.nccl.is_available = _yes
    for name in ("range_push", "range_pop", "range_start", "range_end", "mark"):
        setattr(cuda.nvtx, name, lambda *arguments, **options: -2)  # NVTX's answer without a profiler
    libraries: Any = torch
    libraries.version.cuda = CUDA_VERSION
    libraries._C._cuda_getCurrentRawStream = lambda index: 0
