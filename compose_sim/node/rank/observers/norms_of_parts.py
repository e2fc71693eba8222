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
    """Remember where a flat part lies: by a weak reference to its memory, since another tensor may get the address."""
    yield
    torch: Any = sys.modules["torch"]
    given: Any = call.value("output") if "reduce_scatter" in call.name else None
    known: dict[int, Any] = context.memory.setdefault(_SCATTERED, {})
    if type(given) is torch.Tensor and given.dim() == 1 and len(known) < _MAX_TENSORS:
        storage = given.untyped_storage()
        weak = torch.multiprocessing.reductions.StorageWeakRef(storage)
        known[storage.data_ptr()] = weak, given.data_ptr(), given.numel() * given.element_size()


def _norm(context: RankContext, call: points.TorchCall) -> points.Steps:
    tensor: Any = call.arguments[0] if call.arguments else call.options.get("x")
    norm: Any = yield
    torch: Any = sys.modules["torch"]
    is_plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided and tensor.numel() > 1 == norm.numel()
    count = context.memory.get(_COUNT, 0)
    if is_plain and count < _MAX_NORMS and _is_part(context, tensor):
        context.memory[_COUNT] = count + 1
        context.note(NormOfPart(float(norm.detach()), tensor.numel(), place()))


def _is_part(context: RankContext, tensor: Any) -> bool:
    scattered, shards = context.memory.get(_SCATTERED, {}), _shards(context)
    if not (scattered or shards):  # nor may any tensor have memory, as under vmap
        return False
    address, at = tensor.untyped_storage().data_ptr(), tensor.data_ptr()
    weak, begin, size = scattered.get(address, (None, 0, 0))
    if weak is not None and not weak.expired():
        return bool(begin <= at and at + tensor.numel() * tensor.element_size() <= begin + size)
    return address in shards


def _shards(context: RankContext) -> frozenset[int]:
    """Return the addresses of what this rank holds of sharded parameters."""
    held_at: tuple[int, frozenset[int]] = context.memory.get(_SHARDS, (-1, frozenset()))
    steps, shards = held_at
    if steps != context.steps:
        held = [each for each in parameters_that_stepped(context) if hasattr(each, "placements")]
        parts = [tracked.local(each) for each in held if any(placed.is_shard() for placed in each.placements)]
        shards = frozenset(each.untyped_storage().data_ptr() for each in parts)
        context.memory[_SHARDS] = context.steps, shards
    return shards
