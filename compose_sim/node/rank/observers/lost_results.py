"""
Notice, in `check`, an all_reduce whose result is freed as the call returns: it was given a temporary, as in `all_reduce(x / n)`.

The tensor is watched, unless something else has its memory: the tensor that it is a view of, or an array of NumPy. If it goes while the
script is still at the instruction of the call, no name holds it.
"""

from __future__ import annotations

import sys
import weakref
from operator import gt
from types import FrameType
from typing import Any

from ...records.process_groups import LostResult
from ...shared.frames import is_ours, is_user_code
from ..context import RankContext, place_in
from ..torch_hooks.points import OWN, TorchCall

_WATCHED, _FREED = "lost_results.watched", "lost_results.freed"
_MAX_NOTED = 50


def watch(context: RankContext, call: TorchCall) -> None:
    """Watch the tensor of an all_reduce that returns when it is done, and note the results that were lost before."""
    settle(context)
    torch: Any = sys.modules["torch"]
    tensor: Any = call.value(OWN["all_reduce"]) if call.name == "all_reduce" and not call.value("async_op") else None
    frame = _caller(sys._getframe(1))
    if frame is None or type(tensor) is not torch.Tensor or tensor.layout is not torch.strided or _is_shared(tensor):
        return
    instruction, at = (id(frame), frame.f_lasti), place_in(frame)

    def gone(_: object) -> None:
        # A backward pass may free the tensor in a thread of its own, in which no Python code calls this.
        here = _caller(sys._getframe().f_back)
        if here is not None and (id(here), here.f_lasti) == instruction:
            context.memory.setdefault(_FREED, []).append(at)

    context.memory[_WATCHED] = weakref.ref(tensor, gone)


def settle(context: RankContext) -> None:
    """Note the results that were lost."""
    for at in context.memory.pop(_FREED, []):
        count = context.memory[f"{_FREED}.count"] = context.memory.get(f"{_FREED}.count", 0) + 1
        if count <= _MAX_NOTED:
            context.note(LostResult(at))


def _is_shared(tensor: Any) -> bool:
    """Return whether anything but this tensor has its memory, such as a view, an array or a name of the storage."""
    fresh = sys.modules["torch"].empty(1)
    return not tensor.untyped_storage().resizable() or any(map(gt, _uses(tensor), _uses(fresh)))


def _uses(tensor: Any) -> tuple[int, int]:
    """Return how often the storage of a tensor is used, by Python objects and by tensors."""
    storage = tensor.untyped_storage()
    return sys.getrefcount(storage), sys.modules["torch"]._C._storage_Use_Count(storage._cdata)


def _caller(frame: FrameType | None) -> FrameType | None:
    """Return the frame of the script that calls composesim; None if a library calls it, which may issue collectives to wait."""
    while frame is not None and is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    return frame if frame is not None and is_user_code(frame.f_code.co_filename) else None
