"""Compose the collectives that NCCL has and gloo lacks, and check the tensors of all collectives."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Callable

import torch

from ...shared.import_hooks import wrap
from . import groups
from .meeting import tensors_in

_CHECKED_TEXT = (
    "all_reduce broadcast reduce all_gather all_gather_into_tensor gather scatter reduce_scatter "
    "reduce_scatter_tensor all_to_all all_to_all_single send recv isend irecv all_reduce_coalesced "
    "all_gather_coalesced _all_gather_base _reduce_scatter_base all_gather_single reduce_scatter_single"
)
CHECKED = tuple(_CHECKED_TEXT.split())
# The memory formats in which NCCL accepts a tensor with this number of dimensions; 0 stands for others
_FORMATS: dict[int, tuple[Any, ...]] = {
    0: (torch.contiguous_format,),
    4: (torch.contiguous_format, torch.channels_last),
    5: (torch.contiguous_format, torch.channels_last_3d),
}
# The arguments that NCCL sends or fills as they lie in memory; it copies the tensors of other lists
_IN_PLACE = ("tensor", "output", "input", "output_tensor", "input_tensor", "output_tensor_list", "input_tensor_list")


class Done:
    """The work of a collective that has completed."""

    def wait(self, timeout: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def get_future(self) -> Any:
        future: Any = torch.futures.Future()
        future.set_result([])
        return future


def _flat(real: Any, call: dict[str, Any]) -> Any:
    """Flatten the tensors: NCCL only requires the same number of elements to gather or scatter, gloo also requires the same shape."""
    for name in ("output_tensor", "output", "input_tensor", "input"):
        tensor = call.get(name)
        if isinstance(tensor, torch.Tensor) and tensor.is_contiguous():
            call[name] = tensor.view(-1)
    return real(**call)


def _uneven(real: Any, call: dict[str, Any]) -> Any:
    """Gather tensors of different sizes by broadcasting each, as NCCL does; gloo requires equal sizes."""
    outputs, group = call["tensor_list"], call.get("group")
    if len({tuple(output.shape) for output in outputs}) <= 1:
        return real(**call)
    distributed: Any = torch.distributed
    for rank, output in enumerate(outputs):
        if rank == distributed.get_rank(group):
            output.copy_(call["tensor"])
        source = rank if group is None else distributed.get_global_rank(group, rank)
        distributed.distributed_c10d.broadcast(output, source, group=group)
    return Done() if call.get("async_op") else None


def _scaled(real: Any, call: dict[str, Any]) -> Any:
    """
    Compute an average as a scaled sum: for integers, which NCCL rounds towards zero, and for all types if this gloo has no
    average.

    If gloo has no average, it raises an error before it sends anything.
    """
    distributed: Any = torch.distributed
    if call.get("op") != distributed.ReduceOp.AVG:
        return real(**call)
    result = next(call[name] for name in ("tensor", "output", "output_tensor") if name in call)
    whole = not (result.is_floating_point() or result.is_complex())
    if not whole:
        try:
            return real(**call)
        except RuntimeError as error:
            if "ReduceOp.AVG" not in str(error):
                raise
    work = real(**{**call, "op": distributed.ReduceOp.SUM, "async_op": False})
    result.div_(distributed.get_world_size(call.get("group")), rounding_mode="trunc" if whole else None)
    return Done() if call.get("async_op") else work


def _flat_and_scaled(real: Any, call: dict[str, Any]) -> Any:
    return _scaled(lambda **flat: _flat(real, flat), call)


def _by_one_tensor(real: Any, call: dict[str, Any]) -> Any:
    """Exchange lists of tensors as one flat tensor if this gloo, such as that of torch 2.9, has no exchange of lists."""
    try:
        return real(**call)
    except RuntimeError as error:
        if "does not support alltoall" not in str(error):
            raise
    outputs, inputs = call["output_tensor_list"], call["input_tensor_list"]
    sent = torch.cat([each.reshape(-1) for each in inputs])
    sizes, its_sizes = [each.numel() for each in inputs], [each.numel() for each in outputs]
    received = sent.new_empty(sum(its_sizes))
    torch.distributed.distributed_c10d.all_to_all_single(received, sent, its_sizes, sizes, group=call.get("group"))
    for output, part in zip(outputs, received.split(its_sizes)):
        output.copy_(part.view_as(output))
    return Done() if call.get("async_op") else None


Composition = Callable[[Any, dict[str, Any]], Any]
COMPOSED: dict[str, Composition] = {
    "all_reduce": _scaled,
    "reduce": _scaled,
    "reduce_scatter": _scaled,
    "all_gather": _uneven,
    "all_to_all": _by_one_tensor,
    "all_gather_into_tensor": _flat,
    "all_gather_single": _flat,
    "_all_gather_base": _flat,
    "reduce_scatter_tensor": _flat_and_scaled,
    "reduce_scatter_single": _flat_and_scaled,
    "_reduce_scatter_base": _flat_and_scaled,
}


def emulate(distributed: Any) -> None:
    """Patch torch.distributed once it is imported, to check the arguments as NCCL does and to compose what gloo lacks.

    Only the names that scripts use are patched. torch's own calls keep the originals, because they send objects as CPU
    tensors.
    """
    for name in CHECKED:
        real = getattr(distributed, name, None)
        if real is not None:
            setattr(distributed, name, _checked(real, COMPOSED.get(name)))
    for name in ("isend", "irecv"):  # a P2POp accepts only these functions
        setattr(distributed.distributed_c10d, name, getattr(distributed, name))
    _run_one_by_one(distributed.distributed_c10d)


_open_managers: list[Any] = []


def _run_one_by_one(c10d: Any) -> None:
    """Run what `_coalescing_manager` would send together, as Megatron's gradients, one after the other: gloo cannot coalesce."""
    if not hasattr(c10d, "_coalescing_manager"):
        return
    real = c10d._coalescing_manager

    @contextmanager
    def _coalescing_manager(group: Any = None, device: Any = None, async_ops: bool = False) -> Iterator[Any]:
        if not groups.is_nccl_alone(group or c10d._get_default_group()):
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
        call = signature.bind(*arguments, **options).arguments
        group = call.get("group")
        is_nccl = groups.check_tensors(group, call.values(), {})
        if is_nccl and not is_message:
            _check_contiguous([call.get(argument) for argument in _IN_PLACE])
        work = real(*arguments, **options) if compose is None or not is_nccl else compose(real, dict(call))
        if _open_managers and hasattr(work, "wait"):
            work.wait()
        return work

    return checked


def _check_contiguous(arguments: list[Any]) -> None:
    """Raise NCCL's error for a tensor with gaps or in another order, which gloo would accept."""
    for tensor in tensors_in(arguments, {}):
        if not any(tensor.is_contiguous(memory_format=each) for each in _FORMATS.get(tensor.dim(), _FORMATS[0])):
            raise ValueError("Tensors must be contiguous")


def emulate_ddp(module: Any) -> None:
    """
    Patch torch.nn.parallel.distributed once it is imported, to check the devices before DDP's first collective, which
    is in C++.

    By then the constructor has checked the arguments and raised its own errors. The patched function has had this name,
    with the group and the parameters as the first arguments, since torch 1.11.
    """
    name = "_verify_param_shape_across_processes"
    if not hasattr(module, name):
        return

    @wrap(module, name)
    def verify(original: Any, process_group: Any, tensors: Any, *arguments: Any, **options: Any) -> Any:
        groups.check_tensors(process_group, (list(tensors)[:1],), {})
        return original(process_group, tensors, *arguments, **options)
