"""Provide process groups with the backend `nccl`: gloo under NCCL's name, with NCCL's collectives, restrictions and errors."""

from __future__ import annotations

import functools
import inspect
import multiprocessing
import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import torch

from ...shared.import_hooks import wrap
from .. import context as rank_context
from . import devices, failures, interfaces
from .compositions import COMPOSED, Composition
from .devices import CPU
from .meeting import tensors_in


class _Options:
    """ProcessGroupNCCL.Options, which have no effect."""

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        self.is_high_priority_stream = is_high_priority_stream
        self._timeout: Any = None
        self.config = SimpleNamespace()  # ncclConfig_t


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


def emulate_groups(c10d: Any) -> None:
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
        with failures.within_torch():
            made = original(*arguments, **options)
        group = made[0] if isinstance(made, tuple) else made
        if isinstance(group, c10d.ProcessGroup):
            backends = {each.type: group._get_backend(each) for each in group._device_types}
            if "cuda" in backends and "cpu" not in backends:
                group._register_backend(torch.device("cpu"), c10d.ProcessGroup.BackendType.GLOO, backends["cuda"])
            if name := _name_of_nccl(group):
                if device is not None:
                    _given_device.add(id(group))
                _bind(c10d, group, device, name)
        return made


def _name_cuda_as_default(c10d: Any) -> None:
    """Let torch's own code make the tensors that it sends through a group of NCCL on CUDA, as FSDP does."""
    if not hasattr(c10d, "_get_pg_default_device"):
        return

    @wrap(c10d, "_get_pg_default_device")
    def _get_pg_default_device(original: Any, group: Any = None) -> Any:
        group = group or c10d._get_default_group()
        return devices.real_device("cuda") if _is_nccl_alone(group) else original(group)


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


def _check_tensors(group: Any, arguments: Any) -> bool:
    """Return whether a collective with these tensors is NCCL's.

    Raises NCCL's errors before a collective of the script: for CPU tensors, unless they have a backend of their own in this group,
    and for two ranks of a node on one device.
    """
    import torch.distributed as distributed

    group = group if isinstance(group, distributed.ProcessGroup) else distributed.group.WORLD
    if group is None or not _name_of_nccl(group):
        return False
    is_alone, index = _is_nccl_alone(group), None
    for tensor in tensors_in(arguments):
        tag = tensor._composesim_device
        if tag != CPU:
            index = tag if index is None else index
        elif is_alone:
            raise RuntimeError("No backend type associated with device type cpu")
    if index is not None:
        _check_device(group, index)
    return is_alone or index is not None


def _is_nccl_alone(group: Any) -> bool:
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


_distinct: dict[int, Any] = {}  # groups in which no two ranks of a node use one device, by id
_given_device: set[int] = set()  # groups that the script has given a device, by id
_made: Counter[str] = Counter()  # groups, by name
_bound: dict[int, tuple[Any, int]] = {}  # groups that have a device from the beginning, by id


def _bind(c10d: Any, group: Any, device: Any, name: str) -> None:
    """Give a new group with this backend its device, and wait for the other ranks, if this torch does so."""
    is_new = name in ("nccl2", "nccl-lazy") or (name == "nccl" and os.environ.get("TORCH_DIST_USE_NCCL2") != "0")
    if not (is_new and hasattr(c10d, "_nccl2_device")):  # torch 2.14 has the class, too, but does not use it by itself
        return
    if device is None and multiprocessing.parent_process() is not None:  # mp.spawn: LOCAL_RANK is that of the parent
        return
    _, index = _bound.get(id(c10d._world.default_pg), (None, None))  # which a smaller group inherits
    if device is not None:
        index = devices.index_without_use(device)
    elif index is None:
        index = int(os.environ.get("LOCAL_RANK", group.rank())) % devices.count()
    _bound[id(group)] = group, index
    _check_one_device_per_rank(group, index, "making")


def _check_device(group: Any, index: int) -> None:
    """Raise NCCL's error if a tensor on the device with this index may not go through the group."""
    known = _bound.get(id(group))
    if known is None or known[0] is not group:
        _check_one_device_per_rank(group, index, "the first collective of")
    elif known[1] != index:
        raise RuntimeError(f"Expected tensor on cuda:{known[1]} but found tensor on cuda:{index}")


def _check_one_device_per_rank(group: Any, index: int, what: str) -> None:
    """Check once per group that no other rank of this node uses the same device."""
    if _distinct.get(id(group)) is group:
        return
    interfaces.require_one()
    _distinct[id(group)] = group
    import torch.distributed.distributed_c10d as c10d

    store = c10d._world.pg_map[group][1]
    rank, size = group.rank(), group.size()
    node = os.environ.get("COMPOSESIM_NODE", "")
    mine = f"{node} {index}"
    _made[group.group_name] += 1  # the store still holds the answers of a group that had this name and was destroyed
    key = f"composesim/device/{_made[group.group_name]}"
    store.set(f"{key}/{rank}", mine)
    context = rank_context.here()
    if context is not None:  # NCCL, too, waits here for the other ranks
        at = rank_context.where(rank_context.place())
        context.wait_in(f"{what} group {group.group_name}{at}", group.group_name, size)
    others = [store.get(f"{key}/{other}") if other != rank else b"" for other in range(size)]
    if context is not None:
        context.wait_in("")
    for other, its in enumerate(others):
        if its == mine.encode():
            raise _two_on_one(
                sorted((rank, other), reverse=True), index, node or "this node", is_bound=id(group) in _bound
            )


def _two_on_one(ranks: list[int], index: int, node: str, *, is_bound: bool) -> Exception:
    """Return the error for two ranks on one device: that of torch 2.15 and its NCCL, or the earlier one."""
    distributed: Any = torch.distributed
    if is_bound:
        return RuntimeError(
            "Failed to initialize NCCL communicator: invalid usage (run with NCCL_DEBUG=WARN for details) \n"
            "NCCL Last Error: Error: Multiple Ranks are using the same GPU/Partition. Set NCCL_MULTI_RANK_GPU_ENABLE=1 to enable this "
            f"configuration.\n(emulated: rank {ranks[0]} and rank {ranks[1]} both on CUDA device {index} of {node})"
        )
    error: Exception = distributed.DistBackendError(
        "NCCL error in: composesim's emulation of CUDA on the CPU, invalid usage "
        "(run with NCCL_DEBUG=WARN for details)\n"
        "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\n"
        f"Duplicate GPU detected : rank {ranks[0]} and rank {ranks[1]} both on CUDA device {index} of {node}"
    )
    return error


CHECKED = (
    "all_reduce broadcast reduce all_gather all_gather_into_tensor gather scatter reduce_scatter "
    "reduce_scatter_tensor all_to_all all_to_all_single send recv isend irecv all_reduce_coalesced "
    "all_gather_coalesced _all_gather_base _reduce_scatter_base all_gather_single reduce_scatter_single "
    "gather_single gather_into_tensor"
)
# The memory formats in which NCCL accepts a tensor with this number of dimensions; 0 stands for others
_FORMATS: dict[int, tuple[Any, ...]] = {
    0: (torch.contiguous_format,),
    4: (torch.contiguous_format, torch.channels_last),
    5: (torch.contiguous_format, torch.channels_last_3d),
}
# The arguments that NCCL sends or fills as they lie in memory; it copies the tensors of other lists
_IN_PLACE = [
    "tensor",
    "gather_tensor",
    "output",
    "input",
    "output_tensor",
    "input_tensor",
    "output_tensor_list",
    "input_tensor_list",
]


def emulate_collectives(distributed: Any) -> None:
    """Patch torch.distributed once it is imported, to check the arguments as NCCL does and to compose what gloo lacks.

    Only the names that scripts use are patched. torch's own calls keep the originals, because they send objects as CPU tensors.
    """
    for name in CHECKED.split():
        real = getattr(distributed, name, None)
        if real is not None:
            setattr(distributed, name, _checked(real, COMPOSED.get(name)))
    c10d = distributed.distributed_c10d
    for name in ("isend", "irecv"):  # a P2POp accepts only these functions
        setattr(c10d, name, getattr(distributed, name))
    for name in ("send_object_list", "recv_object_list"):  # which call them
        for module in (c10d, distributed):
            setattr(module, name, _of_objects(getattr(c10d, name)))
    _split_by_new_groups(c10d, distributed)
    _run_one_by_one(c10d)


def _split_by_new_groups(c10d: Any, distributed: Any) -> None:
    """Let `split_group`, for which NCCL splits a communicator, make new groups; only a group with a device can be split."""
    if not hasattr(c10d, "split_group"):
        return
    real = c10d.split_group

    @functools.wraps(real)
    def split_group(
        parent_pg: Any = None, split_ranks: Any = None, timeout: Any = None, *rest: Any, **options: Any
    ) -> Any:
        parent = parent_pg or c10d._get_default_group()
        if not (split_ranks and _name_of_nccl(parent) and id(parent) in _given_device):
            return real(parent_pg, split_ranks, timeout, *rest, **options)
        ours = parent is not c10d._get_default_group()
        parts = [[c10d.get_global_rank(parent, rank) for rank in ranks] for ranks in split_ranks]
        mine = [
            c10d.new_group(part, timeout, use_local_synchronization=ours)
            for part in parts
            if not ours or c10d.get_rank() in part
        ]
        found = [group for group in mine if isinstance(group, c10d.ProcessGroup)]
        return found[0] if found else None

    c10d.split_group = distributed.split_group = split_group


class _Objects(threading.local):
    """Whether this thread sends or receives objects, which torch turns into CPU tensors here."""

    are_sent = False


_objects = _Objects()


def _of_objects(real: Any) -> Any:
    @functools.wraps(real)
    def of_objects(*arguments: Any, **options: Any) -> Any:
        before, _objects.are_sent = _objects.are_sent, True
        try:
            return real(*arguments, **options)
        finally:
            _objects.are_sent = before

    return of_objects


_open_managers: list[Any] = []


def _run_one_by_one(c10d: Any) -> None:
    """Run what `_coalescing_manager` would send together, as Megatron's gradients, one after the other: gloo cannot coalesce."""
    if not hasattr(c10d, "_coalescing_manager"):
        return
    real = c10d._coalescing_manager

    @contextmanager
    def _coalescing_manager(group: Any = None, device: Any = None, async_ops: bool = False) -> Iterator[Any]:
        if not _is_nccl_alone(group or c10d._get_default_group()):
            with real(group, device, async_ops) as manager:
                yield manager
            return
        manager = c10d._CoalescingManager()
        _open_managers.append(manager)
        try:
            yield manager
        finally:
            _open_managers.remove(manager)

    c10d._coalescing_manager = torch.distributed._coalescing_manager = _coalescing_manager  # type: ignore[attr-defined]


def _checked(real: Any, compose: Composition | None) -> Any:
    signature = inspect.signature(real)
    is_message = real.__name__ in ("send", "recv", "isend", "irecv")  # for which NCCL only prints a warning

    @functools.wraps(real)
    def checked(*arguments: Any, **options: Any) -> Any:
        if _objects.are_sent:
            return real(*arguments, **options)
        call = signature.bind(*arguments, **options).arguments
        is_nccl = _check_tensors(call.get("group"), call.values())
        if is_nccl and not is_message:
            _check_contiguous([call.get(argument) for argument in _IN_PLACE])
        work = real(*arguments, **options) if compose is None or not is_nccl else compose(real, dict(call))
        if _open_managers and hasattr(work, "wait"):
            work.wait()
        return work

    return checked


def _check_contiguous(arguments: list[Any]) -> None:
    """Raise NCCL's error for a tensor with gaps or in another order, which gloo would accept."""
    for tensor in tensors_in(arguments):
        if not any(tensor.is_contiguous(memory_format=each) for each in _FORMATS.get(tensor.dim(), _FORMATS[0])):
            raise ValueError("Tensors must be contiguous")


def emulate_ddp(module: Any) -> None:
    """Patch torch.nn.parallel.distributed once it is imported, to check the devices before DDP's first collective, which is in C++.

    By then the constructor has checked the arguments and raised its own errors. The patched function has had this name,
    with the group and the parameters as the first arguments, since torch 1.11.
    """
    name = "_verify_param_shape_across_processes"
    if not hasattr(module, name):
        return

    @wrap(module, name)
    def verify(original: Any, process_group: Any, tensors: Any, *arguments: Any, **options: Any) -> Any:
        _check_tensors(process_group, (list(tensors)[:1],))
        return original(process_group, tensors, *arguments, **options)
