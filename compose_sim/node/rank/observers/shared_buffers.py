"""Notice, in `check`, lists whose entries are one tensor, into which a rank has received from several ranks: the last part is left."""

from __future__ import annotations

import sys
from typing import Any

from ...records.process_groups import SharedBuffer
from ..context import RankContext, place
from ..torch_hooks import points

_BUFFERS, _COUNT = "shared_buffers.buffers", "shared_buffers.count"
_LISTS = {"all_gather": "tensor_list", "gather": "gather_list"}
_MAX_BUFFERS, _MAX_NOTED = 16, 20


def look(context: RankContext, call: points.TorchCall) -> None:
    """Look at the list that a collective is to fill."""
    tensors = call.value(_LISTS[call.name]) if call.name in _LISTS else None
    if tensors and tensors[0].numel() and len({each.data_ptr() for each in tensors}) == 1 < len(tensors):
        _note(context, call.name, len(tensors))


def received(context: RankContext, tensor: Any, source: int) -> None:
    """Remember from whom a rank has received into this memory."""
    torch: Any = sys.modules["torch"]
    if _BUFFERS not in context.memory:
        points.PUT_TOGETHER.subscribe(_look_into_list)
    buffers: dict[int, tuple[Any, set[int]]] = context.memory.setdefault(_BUFFERS, {})
    known = buffers.get(tensor.data_ptr())
    if known is None or known[0].expired():
        storage = torch.multiprocessing.reductions.StorageWeakRef(tensor.untyped_storage())
        known = buffers[tensor.data_ptr()] = (storage, set())
        if len(buffers) > _MAX_BUFFERS:
            buffers.pop(next(iter(buffers)))
    known[1].add(source)


def _look_into_list(context: RankContext, call: points.TorchCall) -> None:
    buffers: dict[int, tuple[Any, set[int]]] = context.memory[_BUFFERS]
    tensors = call.arguments[0] if call.arguments else call.options.get("tensors")  # a builtin has no signature
    if not isinstance(tensors, (list, tuple)) or len(tensors) < 2:
        return
    memory = tensors[0].data_ptr()
    storage, sources = buffers.get(memory, (None, set()))
    is_known = storage is not None and not storage.expired() and len(sources) == len(tensors)
    if is_known and all(each.data_ptr() == memory and each.shape == tensors[0].shape for each in tensors):
        _note(context, "recv", len(tensors))
        buffers.pop(memory)


def _note(context: RankContext, op: str, parts: int) -> None:
    count = context.memory[_COUNT] = context.memory.get(_COUNT, 0) + 1
    if count <= _MAX_NOTED:
        context.note(SharedBuffer(op, parts, place()))
