"""Record, in `check`, the norms of parts: of what a reduce_scatter gave this rank, or of what it holds of a sharded tensor."""

from __future__ import annotations

import sys
from typing import Any

from ...records.precautions import NormOfPart
from .. import tracked
from ..context import RankContext, place
from ..torch_hooks import points
from .optimizers import parameters_that_stepped

_SCATTERED, _SHARDS, _COUNT = (f"norms_of_parts.{name}" for name in ("scattered", "shards", "count"))
_MAX_NORMS, _MAX_TENSORS = 300, 1000


def begin(context: RankContext) -> None:
    if context.mode == "record":
        points.COLLECTIVE.subscribe(_scatter)
        points.NORM_TAKEN.subscribe(_norm)


def _scatter(context: RankContext, call: points.TorchCall) -> points.Steps:
    """Remember the memory of a part: by a weak reference, since another tensor may get its address."""
    yield
    given: Any = call.value("output") if "reduce_scatter" in call.name else None
    known: dict[int, Any] = context.memory.setdefault(_SCATTERED, {})
    if type(given) is sys.modules["torch"].Tensor and len(known) < _MAX_TENSORS:
        storage = given.untyped_storage()
        known[storage.data_ptr()] = sys.modules["torch"].multiprocessing.reductions.StorageWeakRef(storage)


def _norm(context: RankContext, call: points.TorchCall) -> points.Steps:
    tensor: Any = call.owner if call.owner is not None else call.arguments[0] if call.arguments else None
    norm: Any = yield
    is_whole = type(tensor) is sys.modules["torch"].Tensor and tensor.numel() > 1 == getattr(norm, "numel", int)()
    if not is_whole or context.memory.get(_COUNT, 0) >= _MAX_NORMS or not _is_part(context, tensor):
        return
    context.memory[_COUNT] = context.memory.get(_COUNT, 0) + 1
    context.note(NormOfPart(float(norm), tensor.numel(), place()))


def _is_part(context: RankContext, tensor: Any) -> bool:
    address = tensor.untyped_storage().data_ptr()
    scattered = context.memory.get(_SCATTERED, {}).get(address)
    if scattered is not None and not scattered.expired():
        return True
    steps, shards = context.memory.get(_SHARDS, (-1, frozenset()))
    if steps != context.steps:
        held = [each for each in parameters_that_stepped(context) if hasattr(each, "placements")]
        parts = [tracked.local(each) for each in held if any(placed.is_shard() for placed in each.placements)]
        shards = frozenset(each.untyped_storage().data_ptr() for each in parts)
        context.memory[_SHARDS] = context.steps, shards
    return address in shards
