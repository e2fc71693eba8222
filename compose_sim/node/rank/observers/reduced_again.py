"""
Notice, in `check`, an all_reduce of counts that hold the result of an earlier one: these are then added again for each rank.

An accumulator that is reduced in place gets so. It holds the result and what was counted since, so no number has become smaller.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from ...records.process_groups import ReducedAgain
from ..context import RankContext, place
from ..torch_hooks.points import OWN, TorchCall

_HELD, _COUNT = "reduced_again.held", "reduced_again.count"
_MAX_ELEMENTS, _MAX_NOTED = 4096, 50


class _Result(NamedTuple):
    storage: Any  # known by a weak reference: another tensor may get its address
    values: Any


def look(context: RankContext, call: TorchCall) -> None:
    """Compare what is about to be reduced with the last result in the same memory."""
    tensor = _counts(call)
    held: dict[int, _Result] = context.memory.setdefault(_HELD, {})
    earlier = held.pop(tensor.data_ptr(), None) if tensor is not None else None
    if earlier is None or earlier.storage.expired() or earlier.values.shape != tensor.shape:
        return
    is_accumulated = bool((tensor >= earlier.values).all() and (tensor > earlier.values).any() and earlier.values.any())
    count = context.memory.get(_COUNT, 0)
    if is_accumulated and count < _MAX_NOTED:
        context.memory[_COUNT] = count + 1
        context.note(ReducedAgain(place(), bool((tensor == tensor.round()).all())))


def keep(context: RankContext, call: TorchCall) -> None:
    """Keep the result."""
    tensor, torch = _counts(call), sys.modules["torch"]
    if tensor is not None:
        storage = torch.multiprocessing.reductions.StorageWeakRef(tensor.untyped_storage())
        context.memory.setdefault(_HELD, {})[tensor.data_ptr()] = _Result(storage, tensor.detach().clone())


def _counts(call: TorchCall) -> Any:
    """Return the tensor of an all_reduce that adds numbers from 0 on, of which one may be a count: it is whole; else None."""
    torch: Any = sys.modules["torch"]
    if (
        call.name != "all_reduce"
        or call.value("async_op")
        or call.value("op") not in (None, torch.distributed.ReduceOp.SUM)
    ):
        return None
    tensor = call.value(OWN["all_reduce"])
    if type(tensor) is not torch.Tensor or tensor.is_complex() or not 0 < tensor.numel() <= _MAX_ELEMENTS:
        return None
    is_count = (tensor >= 1) & (tensor == tensor.round())
    return tensor if bool((tensor >= 0).all() and is_count.any()) else None
