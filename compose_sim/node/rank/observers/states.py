"""Hash the tensors of an optimizer, so that ranks can be compared without any communication between them.

Only bits are read: no random number is drawn, no collective is issued, and sharded tensors are left alone.
"""

from __future__ import annotations

import ctypes
import hashlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from ...records.models import TensorHashes, TensorRow, TensorTable
from ..context import RankContext
from ..tracked import numbered
from .models import Model, clean, living

_TABLES = "states.tables"
_PART_BYTES, _PARTS = 1 << 16, 64  # of a large tensor on the CPU, in an ordinary run
_ON_DEVICE = 1 << 20  # elements at once
_SHARDED = ("_fsdp_flattened", "_is_flat_param", "ds_id", "placements", "_local_shards")  # FSDP, DeepSpeed, DTensor, …


def note_state(context: RankContext, optimizer: Any, index: int, done: int, final: bool = False) -> None:
    """Record the hashes of an optimizer's tensors after `done` steps, and which tensors these are if that has changed."""
    if is_capturing():  # into a CUDA graph, which must not be read from
        return
    entries = list(_entries(context, optimizer))
    rows = tuple(row for row, _ in entries)
    tables = context.memory.setdefault(_TABLES, {})
    number, known = tables.get(index, (-1, None))
    if known != rows:
        tables[index] = number, _ = number + 1, rows
        context.note(TensorTable(index, number, rows))
    hashes = hashes_of([tensor for _, tensor in entries], whole=context.thorough)
    context.note(TensorHashes(index, done, number, hashes, final))


def _entries(context: RankContext, optimizer: Any) -> Iterator[tuple[TensorRow, Any]]:
    """Yield all tensors by which ranks may be compared."""
    models = list(living(context))
    names = {id(each): (model.index, clean(name)) for model, ddp in models for name, each in _compared(model, ddp)}
    ignored = {id(each) for model, ddp in models for each in _ignored(model, ddp)}
    used = set()
    for own, parameter in numbered(optimizer):
        if id(parameter) in ignored:
            continue
        of, name = names.get(id(parameter), (None, own))
        used.add(of)
        yield from entry("parameter", of, name, parameter)
        state = optimizer.state.get(parameter) or {} if hasattr(optimizer, "state") else {}
        for key in sorted(state, key=str):
            yield from entry("optimizer state", of, f"{name}: {key}", state[key])
    for model, ddp in models:
        if model.index in used and not ddp.broadcast_buffers:
            for name, buffer in _buffers(ddp, model):
                yield from entry("buffer", model.index, name, buffer)


def _compared(model: Model, ddp: Any) -> Iterator[tuple[str, Any]]:
    return ((name, each) for name, each in ddp.module.named_parameters() if name not in model.ignored)


def _ignored(model: Model, ddp: Any) -> Iterator[Any]:
    return (each for name, each in ddp.module.named_parameters() if name in model.ignored)


def _buffers(ddp: Any, model: Model) -> Iterator[tuple[str, Any]]:
    """Yield the buffers in the model's state, without those of BatchNorm, which differ because each rank sees other samples."""
    batchnorm: Any = sys.modules["torch.nn.modules.batchnorm"]
    for prefix, module in ddp.module.named_modules():
        if isinstance(module, batchnorm._NormBase) and not isinstance(module, batchnorm.SyncBatchNorm):
            continue
        for name, buffer in module.named_buffers(prefix, recurse=False):
            own = name.rpartition(".")[2]
            if own not in getattr(module, "_non_persistent_buffers_set", ()) and name not in model.ignored:
                yield clean(name), buffer


def entry(kind: str, model: int | None, name: str, tensor: Any) -> Iterator[tuple[TensorRow, Any]]:
    """Yield the tensor if ranks can be compared by it; without its values if ranks hold different parts of it."""
    torch: Any = sys.modules["torch"]
    if not isinstance(tensor, torch.Tensor):
        return
    sharded = any(hasattr(tensor, attribute) for attribute in _SHARDED)
    if sharded:
        yield TensorRow("sharded", model, name), None
    elif tensor.layout is torch.strided and type(tensor.detach()) is torch.Tensor and tensor.device.type != "meta":
        row = TensorRow(kind, model, name, tuple(tensor.shape), str(tensor.dtype)[6:], tensor.device.type)
        yield row, tensor.detach()


def hashes_of(tensors: Sequence[Any], *, whole: bool) -> tuple[str | None, ...]:
    """Hash each tensor; hashes of tensors on devices are computed there, and read all at once."""
    hashes: list[str | None] = [None] * len(tensors)
    on_device: dict[Any, list[tuple[int, Any]]] = {}
    for index, tensor in enumerate(tensors):
        if tensor is None:
            continue
        if tensor.device.type == "cpu":
            hashes[index] = _of_bytes(tensor, whole=whole)
        else:
            on_device.setdefault(tensor.device, []).append((index, _of_bits(tensor)))
    torch: Any = sys.modules["torch"]
    for found in on_device.values():
        values = torch.stack([value for _, value in found]).tolist()
        for (index, _), value in zip(found, values):
            hashes[index] = f"{value & 0xFFFFFFFFFFFFFFFF:016x}"
    return tuple(hashes)


def _of_bytes(tensor: Any, *, whole: bool) -> str:
    """Hash a tensor straight from memory: without NumPy, and without an operator that a mode of the user could see."""
    tensor = tensor if tensor.is_contiguous() else tensor.contiguous()
    size = tensor.numel() * tensor.element_size()
    digest = hashlib.blake2b(digest_size=8)
    if size:
        memory = memoryview((ctypes.c_ubyte * size).from_address(tensor.data_ptr()))
        if whole or size <= _PART_BYTES * _PARTS:
            digest.update(memory)
        else:
            for part in range(_PARTS):
                start = part * (size - _PART_BYTES) // (_PARTS - 1)
                digest.update(memory[start : start + _PART_BYTES])
    return digest.hexdigest()


def _of_bits(tensor: Any) -> Any:
    """Hash a tensor on the device: the sum of all words, each times an odd number for the position, modulo 2**64."""
    torch: Any = sys.modules["torch"]
    tensor = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    words = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    flat = tensor.contiguous().view(-1).view(words)
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    weights = (
        torch.arange(min(flat.numel(), _ON_DEVICE), dtype=torch.int64, device=tensor.device) * 0x9E3779B97F4A7C14 + 1
    )
    for number, part in enumerate(flat.split(_ON_DEVICE) if flat.numel() else ()):
        total = total * 0x2545F4914F6CDD1D + (part.to(torch.int64) * weights[: part.numel()]).sum() + number
    return total


def is_capturing() -> bool:
    """Return whether a CUDA graph is being captured."""
    torch: Any = sys.modules["torch"]
    return bool(torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())
