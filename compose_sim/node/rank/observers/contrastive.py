"""
Look, in `check`, at losses that compare each sample of a rank with the samples of all ranks, as contrastive losses do.

If features are gathered in the order of the ranks, the columns of a rank's own samples begin at its rank times the size of its batch.
Targets that count from 0 on every rank name the samples of rank 0 then. The order is known from what the rank gave the gather, or
from scores that are higher for pairs than for others, once the model has learned that. If all ranks compare all samples, two views of a
rank's samples lie in the halves of its part.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from typing import Any

from ...records.gradients import ContrastedSamples
from ..context import RankContext, place
from ..torch_hooks import points
from .collective_calls import GATHERS
from .gathers import kept_by

_GIVEN, _PASSES = "contrastive.given", "contrastive.passes"
_MAX_GIVEN, _MAX_PASSES, _MAX_NODES = 8, 1 << 12, 64
_MASKED = -1e3  # logarithms of probabilities below it are of samples that the loss leaves out


def begin(context: RankContext) -> None:
    if context.mode == "record":
        points.BACKWARD.subscribe(_look)


def remember(context: RankContext, call: points.TorchCall) -> None:
    """Remember the features that this rank gives a gather, until the next backward pass."""
    own = call.value(points.OWN[call.name]) if call.name in GATHERS else None
    given: list[Any] = context.memory.setdefault(_GIVEN, [])
    if isinstance(own, sys.modules["torch"].Tensor) and own.dim() == 2 and len(given) < _MAX_GIVEN:
        given.append(own.detach())


def _look(context: RankContext, call: points.TorchCall) -> None:
    """Look at the passes 1, 2, 4, 8 and so on: a model learns to tell pairs from others."""
    torch: Any = sys.modules["torch"]
    given: list[Any] = context.memory.pop(_GIVEN, [])
    count = context.memory[_PASSES] = context.memory.get(_PASSES, 0) + 1
    root = getattr(points.root_of(call), "grad_fn", None)
    if count > _MAX_PASSES or count & (count - 1) or root is None or not torch.distributed.is_initialized():
        return
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    for node, scores, targets in _compared(root):
        size, first = len(targets), torch.arange(len(targets), device=targets.device)
        if rank and size > 1 and tuple(scores.shape) == (size, world * size) and torch.equal(targets, first):
            blocks = [each[rank * size : (rank + 1) * size] for each in _features(node, world * size)]
            is_in_order = any(torch.equal(block, own) for block in blocks for own in given)
            heights = _height(scores, first + rank * size), _height(scores, first)
            context.note(ContrastedSamples(size, is_in_order, *heights, at=place()))
        elif tuple(scores.shape) == (size, size) and any(len(own) * world == size for own in given):
            part = size // world
            halves = first - first % part + (first % part + part // 2) % part
            if not part % 2 and not torch.equal(targets, halves):
                heights = _height(scores, halves), _height(scores, targets)
                context.note(ContrastedSamples(part, False, *heights, are_halves=True, at=place()))


def _compared(node: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Yield each cross entropy near the end of a computation, with the logarithms of its probabilities, and its targets."""
    waiting, seen = deque([node]), {node}
    while waiting and len(seen) < _MAX_NODES:
        node = waiting.popleft()
        following = [each for each, _ in node.next_functions if each is not None and each not in seen]
        targets = getattr(node, "_saved_target", None)
        scores = getattr(following[0], "_saved_result", None) if following else None
        if targets is not None and scores is not None and targets.dim() == 1 and scores.dim() == 2:
            yield node, scores, targets
        else:
            waiting.extend(following)
            seen.update(following)


def _features(node: Any, count: int) -> Iterator[Any]:
    """Yield the matrices of which scores may be made, with the samples of all ranks as rows."""
    for each in kept_by(node):
        if each.dim() == 2 and count in each.shape:
            yield each.detach() if each.shape[0] == count else each.detach().T


def _height(scores: Any, columns: Any) -> float:
    """Return by how many of their standard deviations the mean of these scores, one a row, is above the mean of all."""
    torch: Any = sys.modules["torch"]
    with torch.no_grad():
        given = scores.double()
        masked = given.isinf() | (given < _MASKED)
        within = given.masked_fill(masked, 0.0)
        within = (within - within.sum(1, keepdim=True) / (~masked).sum(1, keepdim=True).clamp_min(1)).masked_fill(
            masked, 0.0
        )
        spread = within.square().sum().div((~masked).sum().clamp_min(1)).sqrt().clamp_min(1e-12)
        return float(within.gather(1, columns.unsqueeze(1)).mean() / spread * len(columns) ** 0.5)
