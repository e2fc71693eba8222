"""Replace the functions of torch.cuda that describe devices: names, which show that they are emulated, memory, and NVML's answers.

The memory of a device is a share of the machine's memory. In use are the tensors that are alive when the memory is queried.
The utilization is the share of time in which this process has used a CPU since the previous query. Temperature, power and clock are
constants.
"""

from __future__ import annotations

import collections
import functools
import gc
import os
import sys
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

from ...shared.frames import is_user_code
from ...shared.import_hooks import replace
from . import devices
from .devices import index_of

NAME = "CUDA emulated on the CPU"
CAPABILITY = (8, 0)  # of a device with bfloat16 and TF32, by which scripts choose types
CUDA_VERSION = "12.8"  # of a torch that was built without CUDA
CUDNN_VERSION = 91002
NCCL_VERSION = (2, 27, 5)
_DRIVER_VERSION = "570.00"
_CELSIUS, _MILLIWATTS, _MEGAHERTZ = 40, 100_000, 1410
_COUNTED = ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes")
_NOT_COUNTED = ("allocation", "segment", "active", "inactive_split", "inactive_split_bytes")
_peak: dict[int, int] = {}


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
    return DeviceProperties(NAME, total(), uuid=f"composesim-emulated-{index}", pci_bus_id=index)


def synchronize(device: Any = None) -> None:
    """Do nothing: an emulated device has finished when a call returns."""
    index_of(device)


class _Asked:
    """Whether the script has asked if there is a GPU; libraries do that even if they cannot do without."""

    ever = False


def is_available() -> bool:
    _Asked.ever = _Asked.ever or is_user_code(sys._getframe(1).f_code.co_filename)
    return True


def was_asked_for() -> bool:
    """Return whether the script has asked if there is a GPU."""
    return _Asked.ever


def _yes(*arguments: Any, **options: Any) -> bool:
    return True


def describe_devices() -> None:
    """Replace torch.cuda's own functions, which have no hooks."""
    cuda: Any = torch.cuda
    os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")  # torch.cuda sets it when it is initialized
    answers: dict[str, Any] = {
        "is_available": is_available,
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
        "check_error": nothing,
        "_check_capability": nothing,
        "_check_cubins": nothing,
    }
    replace(answers, cuda, cuda.random, cuda.memory, cuda.nccl)  # the other three have imported some of the names
    cuda.nccl.version = lambda: NCCL_VERSION
    cuda.nccl.is_available = _yes
    for name in ("range_push", "range_pop", "range_start", "range_end", "mark"):
        setattr(cuda.nvtx, name, lambda *arguments, **options: -2)  # NVTX's answer without a profiler
    libraries: Any = torch
    libraries.version.cuda = libraries.version.cuda or CUDA_VERSION  # other libraries compare it with their own
    libraries._C._cuda_getCurrentRawStream = lambda index: 0


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


def nested_stats(device: Any = None) -> dict[str, Any]:
    """Return the statistics as dictionaries in dictionaries."""
    found: dict[str, Any] = {}
    for name, value in stats(device).items():
        *parts, last = name.split(".")
        functools.reduce(lambda part, key: part.setdefault(key, {}), parts, found)[last] = value
    return found


def summary(device: Any = None, abbreviated: bool = False) -> str:
    index = index_of(device)
    return f"cuda:{index} is emulated on the CPU: {allocated(index)} bytes of memory in use, {peak(index)} at most when asked"


def free_and_total(device: Any = None) -> tuple[int, int]:
    devices.begin()  # as torch does: a process that is forked afterwards cannot use CUDA
    whole = total()
    return max(0, whole - allocated(device)), whole


def nothing(*arguments: Any, **options: Any) -> None:
    """Do nothing."""


def report_memory() -> None:
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
        "memory_stats_as_nested_dict": nested_stats,
        "host_memory_stats": lambda: collections.OrderedDict(),
        "host_memory_stats_as_nested_dict": lambda: {},
        "reset_accumulated_host_memory_stats": nothing,
        "reset_peak_host_memory_stats": nothing,
        "get_per_process_memory_fraction": lambda device=None: 1.0,
        "caching_allocator_enable": nothing,
        "caching_allocator_delete": nothing,
        "memory_snapshot": lambda *arguments, **options: [],
        "_record_memory_history": nothing,
        "_snapshot": lambda *arguments, **options: {
            "segments": [],
            "device_traces": [[] for _ in range(devices.count())],
        },
    }
    replace(answers, torch.cuda, torch.cuda.memory)


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


def emulate_pynvml(module: Any) -> None:
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
        used = allocated(device)
        return SimpleNamespace(total=total(), used=used, free=total() - used)

    answers: dict[str, Any] = {
        **{name: unsupported for name in vars(module) if name.startswith(("nvmlDevice", "nvmlSystem", "nvmlUnit"))},
        **dict.fromkeys(("nvmlInit", "nvmlInitWithFlags", "nvmlShutdown"), nothing),
        "nvmlSystemGetDriverVersion": lambda: _DRIVER_VERSION,
        "nvmlSystemGetCudaDriverVersion": lambda: int(str(torch.version.cuda).replace(".", "0")) * 10,
        "nvmlDeviceGetCount": devices.count,
        "nvmlDeviceGetHandleByIndex": handle,
        "nvmlDeviceGetHandleByUUID": lambda uuid: handle(by_uuid(uuid)),
        "nvmlDeviceGetIndex": lambda device: device,
        "nvmlDeviceGetUUID": _uuid,
        "nvmlDeviceGetName": lambda device: NAME,
        "nvmlDeviceGetMemoryInfo": memory_info,
        "nvmlDeviceGetUtilizationRates": lambda device: SimpleNamespace(gpu=utilization(device), memory=0),
        "nvmlDeviceGetTemperature": lambda device, sensor: _CELSIUS,
        "nvmlDeviceGetPowerUsage": lambda device: _MILLIWATTS,
        "nvmlDeviceGetClockInfo": lambda device, kind: _MEGAHERTZ,
        "nvmlDeviceGetCudaComputeCapability": lambda device: CAPABILITY,
        "nvmlDeviceGetComputeRunningProcesses": lambda device: [
            SimpleNamespace(pid=os.getpid(), usedGpuMemory=allocated(device))
        ],
    }
    replace(answers, module)


def _uuid(index: int) -> str:
    return str(get_device_properties(index).uuid)


def report_use() -> None:
    """Replace the functions of torch.cuda that query NVML."""
    answers = {
        "utilization": utilization,
        "memory_usage": _constant(0),
        "temperature": _constant(_CELSIUS),
        "power_draw": _constant(_MILLIWATTS),
        "clock_rate": _constant(_MEGAHERTZ),
        "device_memory_used": allocated,
    }
    replace(answers, torch.cuda)
