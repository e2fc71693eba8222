"""Compose the collectives of NCCL that gloo lacks, or restricts more, from others."""

from __future__ import annotations

import threading
from typing import Any, Callable

import torch


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


class _WithFuture:
    """The work of a collective for which gloo has no future: a thread waits for it."""

    def __init__(self, work: Any, result: Any) -> None:
        self._work, self._result = work, result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)

    def get_future(self) -> Any:
        future: Any = torch.futures.Future()

        def complete() -> None:
            try:
                self._work.wait()
            except Exception as error:  # noqa: BLE001 - raised where the script waits for the future
                future.set_exception(error)
            else:
                future.set_result(self._result)

        threading.Thread(target=complete, daemon=True).start()
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
    """Compute an average as a scaled sum: for integers, which NCCL rounds towards zero, and for all types if this gloo has no average.

    If gloo has no average, it raises an error before it sends anything. A sum with a factor, as FSDP may ask for, exists on NCCL only.
    """
    distributed: Any = torch.distributed
    op = call.get("op")
    result = next(call[name] for name in ("tensor", "output", "output_tensor") if name in call)
    if op == distributed.ReduceOp.PREMUL_SUM:
        work = real(**{**call, "op": distributed.ReduceOp.SUM, "async_op": False})
        result.mul_(op.__getstate__()[1])
        return Done() if call.get("async_op") else work
    if op != distributed.ReduceOp.AVG:
        return real(**call)
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


def _scattered(real: Any, call: dict[str, Any]) -> Any:
    result = next(call[name] for name in ("output", "output_tensor") if name in call)
    work = _scaled(real, call)
    return _WithFuture(work, [result]) if call.get("async_op") and not isinstance(work, Done) else work


def _flat_and_scattered(real: Any, call: dict[str, Any]) -> Any:
    return _scattered(lambda **flat: _flat(real, flat), call)


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


def _by_list(real: Any, call: dict[str, Any]) -> Any:
    """Gather into the parts of one tensor as gloo gathers into a list: torch 2.14 has `gather_single` for NCCL alone."""
    distributed: Any = torch.distributed
    group, into = call.get("group"), call.get("gather_tensor")
    root = call.get("group_dst")
    if root is None:
        root = distributed.get_group_rank(group or distributed.group.WORLD, call.get("dst") or 0)
    parts = None
    if distributed.get_rank(group) == root and into is not None:
        parts = [part.view_as(call["tensor"]) for part in into.view(-1).chunk(distributed.get_world_size(group))]
    options = {"group": group, "group_dst": root, "async_op": call.get("async_op", False)}
    return distributed.distributed_c10d.gather(call["tensor"], parts, **options)


Composition = Callable[[Any, dict[str, Any]], Any]
COMPOSED: dict[str, Composition] = {
    "all_reduce": _scaled,
    "reduce": _scaled,
    "reduce_scatter": _scattered,
    "all_gather": _uneven,
    "gather_single": _by_list,
    "gather_into_tensor": _by_list,
    "all_to_all": _by_one_tensor,
    "all_gather_into_tensor": _flat,
    "all_gather_single": _flat,
    "_all_gather_base": _flat,
    "reduce_scatter_tensor": _flat_and_scattered,
    "reduce_scatter_single": _flat_and_scattered,
    "_reduce_scatter_base": _flat_and_scattered,
}
