"""How is there a process group with the backend `nccl`? It is gloo under NCCL's name, which takes CUDA tensors and no others."""

from __future__ import annotations

import functools
from datetime import timedelta
from typing import Any

import torch

from . import devices, ranks_devices
from .devices import CPU
from .meeting import tensors_in


class _Options:
    """ProcessGroupNCCL.Options: kept, and of no effect."""

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        self.is_high_priority_stream = is_high_priority_stream
        self._timeout: Any = None
        self.config = _Config()


class _Config:
    """ncclConfig_t: whatever a script sets."""


class _NcclClass(type):
    """What `torch.distributed.ProcessGroupNCCL` is: a call makes gloo's group."""

    def __call__(cls, store: Any, rank: int, size: int, options: Any = None) -> Any:
        import torch.distributed as distributed

        timeout = getattr(options, "_timeout", None) or distributed.default_pg_timeout
        return distributed.ProcessGroupGloo(store, rank, size, timeout=timeout)

    def __instancecheck__(cls, value: Any) -> bool:
        import torch.distributed as distributed

        return isinstance(value, distributed.ProcessGroupGloo)


def emulate(c10d: Any) -> None:
    """Once torch.distributed.distributed_c10d is there: have NCCL available, and what makes groups make it so."""
    import torch.distributed

    distributed: Any = torch.distributed
    nccl: Any = _NcclClass("ProcessGroupNCCL", (), {"Options": _Options, "__module__": "torch.distributed"})
    for module in (c10d, distributed):
        module.ProcessGroupNCCL = nccl
        module.is_nccl_available = lambda: True
    c10d._NCCL_AVAILABLE = True
    c10d.default_pg_nccl_timeout = timedelta(minutes=10)  # None in a torch without NCCL, which warns of that
    # ProcessGroup makes a tensor on CUDA for a barrier, in C++, where its default backend is NCCL by type.
    c10d.Backend.backend_type_map["nccl"] = c10d.ProcessGroup.BackendType.GLOO
    _make_groups_take_cpu_memory(c10d)
    _keep_barriers_on_the_cpu(c10d)


def _make_groups_take_cpu_memory(c10d: Any) -> None:
    """
    C++ looks for the backend of a tensor's real device, the CPU.

    The one function that makes groups, private as it is, has had this name and result since torch 2.0; a plug-in backend
    could not be called `nccl`.
    """
    real = c10d._new_process_group_helper

    @functools.wraps(real)
    def _new_process_group_helper(*arguments: Any, **options: Any) -> Any:
        device = options.get("device_id")
        if device is not None:  # binding would have C++ talk to that device
            devices.index_of(device)
            options["device_id"] = None
        made = real(*arguments, **options)
        group = made[0] if isinstance(made, tuple) else made
        if isinstance(group, c10d.ProcessGroup):
            backends = _backends(group)
            if "cuda" in backends and "cpu" not in backends:
                backend = backends["cuda"]
                group._register_backend(torch.device("cpu"), c10d.ProcessGroup.BackendType.GLOO, backend)
        return made

    c10d._new_process_group_helper = _new_process_group_helper


def _backends(group: Any) -> dict[str, Any]:
    return {device.type: group._get_backend(device) for device in group._device_types}


def _keep_barriers_on_the_cpu(c10d: Any) -> None:
    """A barrier is told on which device to meet; C++ would make a tensor there."""
    real: Any = c10d.BarrierOptions

    class BarrierOptions(c10d.BarrierOptions):  # type: ignore[misc]
        @property
        def device(self) -> Any:
            return real.device.__get__(self)

        @device.setter
        def device(self, value: Any) -> None:
            real.device.__set__(self, torch.device("cpu"))

    c10d.BarrierOptions = BarrierOptions


def check_tensors(group: Any, arguments: Any, options: Any) -> bool:
    """
    Whether the group is NCCL's.

    Raises NCCL's errors, before a collective of a script: for CPU tensors, and for two ranks of a node on one device.
    """
    import torch.distributed as distributed

    group = group if isinstance(group, distributed.ProcessGroup) else distributed.group.WORLD
    if group is None or not _is_nccl_alone(group):
        return False
    index = None
    for tensor in tensors_in(arguments, options):
        tag = tensor._composesim_device
        if tag == CPU:
            raise RuntimeError("No backend type associated with device type cpu")
        index = tag if index is None else index
    if index is not None:
        ranks_devices.check(group, index)
    return True


def _is_nccl_alone(group: Any) -> bool:
    import torch.distributed.distributed_c10d as c10d

    return bool(c10d._world.pg_map.get(group, ("",))[0] == "nccl")
