"""
Look, in `check`, at losses that compare each sample of a rank with the samples of all ranks, as contrastive losses do.

If features are gathered in the order of the ranks, the columns of a rank's own samples begin at its rank times the size of its batch.
Targets that count from 0 on every rank name the samples of rank 0 then. The order is known from what the rank gave the gather, or
from scores that are higher for pairs than for others, once the model has learned that. If all ranks compare all samples, two views of a
rank's samples lie in the halves of its part.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from ...records.gradients import ContrastedSamples
from ..context import RankContext, place
from ..torch_hooks import points
from .autograd_graph import nodes_near, operation, saved
from .collective_calls import GATHERS

_GIVEN, _PASSES = "contrastive.given", "contrastive.passes"
_MAX_GIVEN, _MAX_ELEMENTS, _MAX_PASSES = 8, 1 << 20, 1 << 12
_MASKED = -1e3  # logarithms of probabilities below it are of samples that the loss leaves out
# Between a product of features and the loss; what moves columns is not among them.
_ELEMENTWISE = ("Div", "Mul", "Add", "Sub", "Neg", "MaskedFill", "ToCopy", "Clone", "Exp")


def begin(context: RankContext) -> None:
    if context.mode == "record":
        points.BACKWARD.subscribe(_look)


def remember(context: RankContext, call: points.TorchCall) -> None:
    """Remember the features that this rank gives a gather, if they are few, until the next backward pass."""
    torch: Any = sys.modules["torch"]
    own = call.value(points.OWN[call.name]) if call.name in GATHERS else None
    given: list[Any] = context.memory.setdefault(_GIVEN, [])
    if isinstance(own, torch.Tensor) and own.dim() == 2 and own.numel() <= _MAX_ELEMENTS and len(given) < _MAX_GIVEN:
        given.append(own.detach())


def _look(context: RankContext, call: points.TorchCall) -> None:
    """Look at the passes 1, 2, 4, 8 and so on: a model learns to tell pairs from others."""
    torch: Any = sys.modules["torch"]
    given: list[Any] = context.memory.pop(_GIVEN, [])
    count = context.memory[_PASSES] = context.memory.get(_PASSES, 0) + 1
    root = getattr(points.root_of(call), "grad_fn", None)
    if not given or count > _MAX_PASSES or count & (count - 1) or root is None:
        return
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    for node, scores, targets in _compared(root):
        size, first = len(targets), torch.arange(len(targets), device=targets.device)
        if rank and size > 1 and tuple(scores.shape) == (size, world * size) and torch.equal(targets, first):
            features = _features(node)
            block = None if features is None else features.T[rank * size : (rank + 1) * size]
            is_in_order = block is not None and any(_is_same(block, own) for own in given)
            heights = _height(scores, first + rank * size), _height(scores, first)
            context.note(ContrastedSamples(size, is_in_order, *heights, at=place()))
        elif tuple(scores.shape) == (size, size) and any(len(own) * world == size for own in given):
            part = size // world
            halves = first - first % part + (first % part + part // 2) % part
            is_within = bool(((targets >= 0) & (targets < size)).all())
            if is_within and not part % 2 and not torch.equal(targets, halves):
                heights = _height(scores, halves), _height(scores, targets)
                context.note(ContrastedSamples(part, False, *heights, are_halves=True, at=place()))


def _is_same(one: Any, other: Any) -> bool:
    torch: Any = sys.modules["torch"]
    return one.device == other.device and one.dtype == other.dtype and bool(torch.equal(one, other))


def _compared(root: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Yield each cross entropy near the end of a computation: where its scores come from, their logarithms, and its targets."""
    for node in nodes_near(root):
        source = _before(node)
        if operation(node) == "NllLoss" and operation(source) == "LogSoftmax":
            targets, scores = saved(node, "_saved_target"), saved(source, "_saved_result")
            if targets is not None and scores is not None and targets.dim() == 1 and scores.dim() == 2:
                yield source, scores, targets


def _features(node: Any) -> Any:
    """Return the second factor of the product that scores are made of, one sample a column; None if it is not known."""
    node = _before(node)
    while operation(node) in _ELEMENTWISE:
        node = _before(node)
    return saved(node, "_saved_mat2") if operation(node) == "Mm" else None


def _before(node: Any) -> Any:
    """Return the node of the first operand that has one; None if there is none."""
    return next((each for each, _ in node.next_functions if each is not None), None)


def _height(scores: Any, columns: Any) -> float:
    """Return by how many of their standard deviations the mean of these scores, one a row, is above the mean of all."""
    torch: Any = sys.modules["torch"]
    with torch.no_grad():
        given = scores.double()
        masked = given.isinf() | (given < _MASKED)
        counted = (~masked).sum(1, keepdim=True).clamp_min(1)
        within = given.masked_fill(masked, 0.0)
        within = (within - within.sum(1, keepdim=True) / counted).masked_fill(masked, 0.0)
        spread = within.square().sum().div(counted.sum()).sqrt().clamp_min(1e-12)
        return float(within.gather(1, columns.unsqueeze(1)).mean() / spread * len(columns) ** 0.5)
