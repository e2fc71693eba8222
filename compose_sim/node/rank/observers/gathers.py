"""Find, in `check`, losses computed from gathered copies of tensors that have a gradient, which the copies have lost.

A copy without a gradient may be a metric, or go into a queue of constants. It is noted if it was detached from a tensor that a function
of the script still holds, and if a backward pass starts near an operation on exactly the gathered numbers. If the script puts
the rank's own part back, the gathered tensor has a gradient again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, NamedTuple

from ...records.gradients import DetachedInLoss
from ...records.record import Place
from ...shared.frames import is_user_code
from ..context import RankContext, place
from ..torch_hooks import points
from .autograd_graph import nodes_near, saved
from .collective_calls import GATHERS

_GATHERED = "gathers.gathered"
_MAX_GATHERED = 8


class Gathered(NamedTuple):
    op: str
    outputs: list[Any]
    shape: tuple[int, ...]
    at: Place | None


def begin(context: RankContext) -> None:
    if context.mode == "record":
        points.BACKWARD.subscribe(_look)


def remember(context: RankContext, call: points.TorchCall) -> None:
    """Remember a gather that returns no gradient, if what it is given is detached from a computation that has one."""
    name, value = call.name, call.value
    own = value(points.OWN[name]) if name in GATHERS else None
    torch: Any = sys.modules["torch"]
    if not isinstance(own, torch.Tensor) or own.dim() < 2 or (own.grad_fn is not None and torch.is_grad_enabled()):
        return
    gathered: list[Gathered] = context.memory.setdefault(_GATHERED, [])
    if len(gathered) < _MAX_GATHERED and (own.grad_fn is not None or _is_detached(own)):
        outputs = list(value("tensor_list")) if name == "all_gather" else [value("output_tensor")]
        gathered.append(Gathered(name, outputs, tuple(own.shape), place()))


def _is_detached(own: Any) -> bool:
    """Return whether a function of the script that is running holds a tensor with a gradient in the same memory."""
    torch: Any = sys.modules["torch"]
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        for each in list(frame.f_locals.values()) if is_user_code(frame.f_code.co_filename) else ():
            has_gradient = isinstance(each, torch.Tensor) and each.grad_fn is not None
            if has_gradient and each.numel() == own.numel() and each.data_ptr() == own.data_ptr():
                return True
        frame = frame.f_back
    return False


def _look(context: RankContext, call: points.TorchCall) -> None:
    gathered: list[Gathered] = context.memory.pop(_GATHERED, [])
    root = points.root_of(call)
    if not gathered or getattr(root, "grad_fn", None) is None:
        return
    torch: Any = sys.modules["torch"]
    constants = [each.detach().flatten().sort().values for each in _constants(root.grad_fn)]
    for each in gathered:
        numbers = torch.cat([output.detach().flatten() for output in each.outputs]).sort().values
        if any(numbers.shape == constant.shape and torch.equal(numbers, constant) for constant in constants):
            context.note(DetachedInLoss(each.op, each.shape, each.at))


def _constants(root: Any) -> Iterator[Any]:
    """Yield the matrices without a gradient that the last operations before a loss have kept."""
    torch: Any = sys.modules["torch"]
    for node in nodes_near(root):
        for kept in (saved(node, name) for name in dir(node) if name.startswith("_saved_")):
            if isinstance(kept, torch.Tensor) and kept.dim() > 1 and not kept.requires_grad:
                yield kept
