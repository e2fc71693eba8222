"""Provide process groups with the backend `nccl`: gloo under NCCL's name, which accepts only CUDA tensors."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch

from ...shared.import_hooks import wrap
from . import devices, group_devices, own_failure
from .devices import CPU
from .meeting import tensors_in


class _Options:
    """ProcessGroupNCCL.Options, which have no effect."""

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        self.is_high_priority_stream = is_high_priority_stream
        self._timeout: Any = None
        self.config = _Config()


class _Config:
    """ncclConfig_t, with any attributes."""


class _NcclClass(type):
    """The replacement for `torch.distributed.ProcessGroupNCCL` and its variants, which makes a gloo group."""

    def __call__(cls, store: Any, rank: int, size: int, options: Any = None, device_id: Any = None) -> Any:
        import torch.distributed as distributed

        timeout = getattr(options, "_timeout", None) or distributed.default_pg_timeout
        return distributed.ProcessGroupGloo(store, rank, size, timeout=timeout)

    def __instancecheck__(cls, value: Any) -> bool:
        import torch.distributed as distributed

        return isinstance(value, distributed.ProcessGroupGloo)


# The first has always been torch's NCCL. The second is since torch 2.15, which also has a variant for messages.
_CLASSES = ("ProcessGroupNCCL", "ProcessGroupNCCL2", "ProcessGroupNCCLLazy")
_BACKENDS = ("nccl", "nccl2", "nccl-lazy", "nccl-legacy")


def emulate(c10d: Any) -> None:
    """Patch torch.distributed.distributed_c10d once it is imported, so that NCCL is available."""
    import torch.distributed

    distributed: Any = torch.distributed
    for name in _CLASSES:
        if name == _CLASSES[0] or hasattr(c10d, name):
            nccl: Any = _NcclClass(name, (), {"Options": _Options, "__module__": "torch.distributed"})
            setattr(c10d, name, nccl)
            setattr(distributed, name, nccl)
    for module in (c10d, distributed):
        module.is_nccl_available = lambda: True
    c10d._NCCL_AVAILABLE = True
    c10d.default_pg_nccl_timeout = timedelta(minutes=10)  # None in a torch without NCCL, which would print a warning
    _register_nccl(c10d.Backend)
    # If the type of the default backend were NCCL, ProcessGroup's C++ code would make a CUDA tensor for a barrier.
    for name in _BACKENDS:
        if name in c10d.Backend.backend_type_map:
            c10d.Backend.backend_type_map[name] = c10d.ProcessGroup.BackendType.GLOO
    _accept_cpu_memory(c10d)
    _keep_barriers_on_cpu(c10d)
    _name_cuda_as_default(c10d)


def _register_nccl(backend: Any) -> None:
    """Register gloo under the names of NCCL where torch finds its own backends as plug-ins, as since torch 2.15."""
    if not hasattr(backend, "_ensure_backend_registered"):
        return
    for name in _BACKENDS:
        backend.register_backend(name, _make_group, extended_api=True, devices=["cuda"])


def _make_group(requested: Any, options: Any) -> Any:
    """Make the backend of a group: torch calls this with its DistributedBackendOptions."""
    return torch.distributed.ProcessGroupGloo(
        requested.store, requested.group_rank, requested.group_size, timeout=requested.timeout
    )


def _accept_cpu_memory(c10d: Any) -> None:
    """Register the backend of CUDA tensors for CPU tensors too, because C++ uses a tensor's real device.

    The patched function is private, but has had this name and result since torch 2.0, and all groups are made by it.
    """

    @wrap(c10d, "_new_process_group_helper")
    def _new_process_group_helper(original: Any, *arguments: Any, **options: Any) -> Any:
        device = options.get("device_id")
        if device is not None:  # C++ would use that device
            devices.index_without_use(device)
            options["device_id"] = None
        with own_failure.within_torch():
            made = original(*arguments, **options)
        group = made[0] if isinstance(made, tuple) else made
        if isinstance(group, c10d.ProcessGroup):
            backends = _backends(group)
            if "cuda" in backends and "cpu" not in backends:
                backend = backends["cuda"]
                group._register_backend(torch.device("cpu"), c10d.ProcessGroup.BackendType.GLOO, backend)
            if name := _name_of_nccl(group):
                group_devices.bind(c10d, group, device, name)
        return made


def _name_cuda_as_default(c10d: Any) -> None:
    """Let torch's own code make the tensors that it sends through a group of NCCL on CUDA, as FSDP does."""
    if not hasattr(c10d, "_get_pg_default_device"):
        return

    @wrap(c10d, "_get_pg_default_device")
    def _get_pg_default_device(original: Any, group: Any = None) -> Any:
        group = group or c10d._get_default_group()
        return devices.real_device("cuda") if is_nccl_alone(group) else original(group)


def _backends(group: Any) -> dict[str, Any]:
    return {device.type: group._get_backend(device) for device in group._device_types}


def _keep_barriers_on_cpu(c10d: Any) -> None:
    """Let barriers use the CPU: C++ would make a tensor on the barrier's device."""
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
    """Return whether a collective with these tensors is NCCL's.

    Raises NCCL's errors before a collective of the script: for CPU tensors, unless they have a backend of their own in this group,
    and for two ranks of a node on one device.
    """
    import torch.distributed as distributed

    group = group if isinstance(group, distributed.ProcessGroup) else distributed.group.WORLD
    if group is None or not _name_of_nccl(group):
        return False
    is_alone, index = is_nccl_alone(group), None
    for tensor in tensors_in(arguments, options):
        tag = tensor._composesim_device
        if tag != CPU:
            index = tag if index is None else index
        elif is_alone:
            raise RuntimeError("No backend type associated with device type cpu")
    if index is not None:
        group_devices.check(group, index)
    return is_alone or index is not None


def is_nccl_alone(group: Any) -> bool:
    """Return whether all tensors of this group go through NCCL."""
    return _backends_asked_for(group) in _BACKENDS


def _name_of_nccl(group: Any) -> str:
    """Return the name of NCCL under which the CUDA tensors of this group go through it; "" if they do not."""
    asked_for = _backends_asked_for(group)
    by_device = dict(each.split(":", 1) for each in asked_for.split(",") if ":" in each)  # such as cpu:gloo,cuda:nccl
    name = "nccl" if asked_for == "undefined" else by_device.get("cuda", asked_for)  # undefined: no backend was named
    return name if name in _BACKENDS else ""


def _backends_asked_for(group: Any) -> str:
    import torch.distributed.distributed_c10d as c10d

    return str(c10d._world.pg_map.get(group, ("",))[0])
