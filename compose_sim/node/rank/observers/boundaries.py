"""Record, in `check`, which gradients flow over the boundaries between the stages of a pipeline, by content.

A stage gets activations as leaves that require a gradient, and another one begins its backward passes from activations with the
gradients that it is given. Copies, which messages make, have the same content.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

from ...records.gradients import BoundaryGradient
from ..context import RankContext, place
from ..torch_hooks import points

_INPUTS, _NOTED = "boundaries.inputs", "boundaries.noted"
_MAX_NOTED = 128  # per rank


def begin(context: RankContext) -> None:
    if context.mode == "record":
        context.memory[_INPUTS], context.memory[_NOTED] = [], 0
        points.MODULE_CALLED.subscribe(_module_called)
        points.BACKWARD.subscribe(_backward)


def _module_called(context: RankContext, _: Any, given: Any) -> None:
    """Keep the inputs whose gradients another stage may want."""
    if context.memory[_NOTED] >= _MAX_NOTED:
        return
    torch = sys.modules["torch"]
    inputs: list[Any] = context.memory[_INPUTS]
    for each in given:
        is_leaf = type(each) is torch.Tensor and each.is_leaf and each.requires_grad
        if is_leaf and not any(known() is each for known in inputs):
            inputs.append(weakref.ref(each))


def _backward(context: RankContext, call: points.TorchCall) -> points.Steps:
    root, gradient = points.root_of(call), call.value("grad_tensors")
    gradient = gradient[0] if isinstance(gradient, (list, tuple)) and len(gradient) == 1 else gradient
    if context.memory[_NOTED] < _MAX_NOTED and _is_plain(root) and _is_plain(gradient) and root.numel() > 1:
        _note(context, root, gradient, is_input=False)
    yield
    inputs: list[Any] = context.memory[_INPUTS]
    known = [(reference, each) for reference in inputs if (each := reference()) is not None]
    for _, each in known:
        if each.grad is not None and context.memory[_NOTED] < _MAX_NOTED:
            _note(context, each, each.grad, is_input=True)
    inputs[:] = [reference for reference, each in known if each.grad is None]


def _is_plain(value: Any) -> bool:
    return type(value) is sys.modules["torch"].Tensor


def _note(context: RankContext, activation: Any, gradient: Any, *, is_input: bool) -> None:
    from ..replay.inputs import MAX_ELEMENTS, hash_of

    if activation.numel() <= MAX_ELEMENTS:
        context.memory[_NOTED] += 1
        context.note(BoundaryGradient(hash_of(activation), hash_of(gradient), is_input, place()))
