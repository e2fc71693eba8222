"""Keep the part that each rank holds of a sharded tensor, and put the parts of all ranks together in a replay.

Ranks write their parts to files: gathering them would add collectives to the script, which could hang.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ..tracked import local


class NotComplete(Exception):
    """The parts of all ranks do not make up the whole tensor."""


class Part(NamedTuple):
    """What one rank contributes to a tensor: values to be added at these positions of the flattened tensor."""

    shape: tuple[int, ...]
    ranks: tuple[int, ...]  # those of the mesh, which hold the whole tensor together
    start: int
    positions: Any  # a tensor, or None if they follow one another from `start`
    values: Any  # a flat tensor in main memory; None if another rank contributes the same


class FlatPart(NamedTuple):
    """What a rank holds of a parameter that the first FSDP shards: `length` values of the flattened tensor, from `start` on."""

    shape: tuple[int, ...]
    ranks: tuple[int, ...]  # those that hold the whole tensor together
    start: int
    length: int
    contributes: bool  # False if an earlier rank holds the same


_NONE: Mapping[int, FlatPart] = {}


def flat_parts(models: Sequence[Any]) -> dict[int, FlatPart]:
    """Return what this rank holds of each parameter of these FullyShardedDataParallel modules, by its id."""
    from torch.distributed import get_process_group_ranks

    found: dict[int, FlatPart] = {}
    for handle in (model._handle for model in models if getattr(model, "_handle", None) is not None):
        flat, ranks = handle.flat_param, tuple(get_process_group_ranks(handle.process_group))
        total = flat._unpadded_unsharded_size.numel()
        if not handle.uses_sharded_strategy:
            for each in (flat, *(flat._params or ())):
                shape = (total,) if each is flat else tuple(each.shape)
                found[id(each)] = FlatPart(shape, ranks, 0, torch.Size(shape).numel(), handle.rank == 0)
            continue
        start = min(handle.rank * flat._sharded_size.numel(), total)
        length = min(flat._sharded_size.numel(), total - start)
        found[id(flat)] = FlatPart((total,), ranks, start, length, True)
        for each, shape, info in zip(flat._params or (), flat._shapes, flat._shard_param_infos):
            begin, length = info.intra_param_start_idx or 0, info.numel_in_shard or 0
            found[id(each)] = FlatPart(tuple(shape), ranks, begin, length, True)
    return found


def is_sharded(tensor: Any, flat: Mapping[int, FlatPart] = _NONE) -> bool:
    """Return whether a tensor is a DTensor that is spread over more than one rank, or one of those that the first FSDP shards."""
    return id(tensor) in flat or (hasattr(tensor, "placements") and tensor.device_mesh.size() > 1)


def copied(tensor: Any, flat: FlatPart | None = None) -> Any:
    """Return a copy in main memory: a tensor, or this rank's part of a sharded one; `flat` is what the first FSDP makes of it."""
    values = local(tensor)
    values = values.to_dense() if values.layout is not torch.strided else values
    values = values.to("cpu", copy=True)
    if flat is not None:
        if values.numel() < flat.length:
            raise NotComplete("a parameter is in another state than between steps")
        held = values.reshape(-1)[: flat.length]  # without what pads the last part
        return Part(flat.shape, flat.ranks, flat.start, None, held if flat.contributes else None)
    if not is_sharded(tensor):
        return values
    mesh, placements = tensor.device_mesh, tensor.placements
    sizes = zip(mesh.get_coordinate() or (), mesh.shape, placements)
    contributes = True
    for coordinate, size, placement in sizes:
        if placement.is_partial():
            operation = getattr(placement, "reduce_op", "sum")
            if operation not in ("sum", "avg"):
                raise NotComplete(f"a tensor is partial with the operation {operation}")
            values = values / size if operation == "avg" else values
        elif placement.is_replicate():
            contributes &= coordinate == 0
    shape = tuple(tensor.shape)
    positions = _positions(shape, mesh, placements)
    start = int(positions[0]) if len(positions) else 0
    follows = len(positions) == 0 or int(positions[-1]) - start + 1 == len(positions)
    ranks = tuple(mesh.mesh.flatten().tolist())
    return Part(shape, ranks, start, None if follows else positions, values.reshape(-1) if contributes else None)


def _positions(shape: tuple[int, ...], mesh: Any, placements: Sequence[Any]) -> Any:
    """Return the positions in the flattened tensor that this rank holds. Splitting a tensor of numbers needs no communication."""
    from torch.distributed.tensor import Replicate, distribute_tensor

    numbers = torch.arange(torch.Size(shape).numel(), device=mesh.device_type).reshape(shape)
    split = [Replicate() if each.is_partial() else each for each in placements]
    return distribute_tensor(numbers, mesh, split, src_data_rank=None).to_local().reshape(-1).cpu()


def whole(parts: Sequence[Any]) -> Any:
    """Return the tensor that these parts of all ranks make up; None if no rank has one. Raises NotComplete."""
    found = [part for part in parts if isinstance(part, Part)]
    if not found:
        return None
    if len({part.shape for part in found}) > 1:
        raise NotComplete("ranks hold parts of tensors of different shapes")
    total, seen = None, None
    for part in found:
        if part.values is None or part.ranks != found[0].ranks:  # a replica on another mesh
            continue
        if total is None or seen is None:
            count = torch.Size(part.shape).numel()
            total, seen = torch.zeros(count, dtype=part.values.dtype), torch.zeros(count, dtype=torch.bool)
        at = slice(part.start, part.start + len(part.values)) if part.positions is None else part.positions
        total[at] += part.values
        seen[at] = True
    if total is None or seen is None or not bool(seen.all()):
        raise NotComplete("no rank recorded some part of a sharded tensor")
    return total.reshape(found[0].shape)


def joined(held: Sequence[Sequence[Any]], *, replicas_agree: bool) -> list[Any]:
    """
    Return the whole tensors of several parameters from what each rank kept of them.

    Raises NotComplete if that is impossible, or if `replicas_agree` and ranks kept different values of a parameter that is not sharded.
    """
    if len({len(values) for values in held}) > 1:
        raise NotComplete("ranks train different parameters")
    found = []
    for values in zip(*held):
        if any(isinstance(value, Part) for value in values):
            found.append(whole(values))
            continue
        kept = [value for value in values if value is not None]
        if replicas_agree and any(not torch.equal(kept[0], value) for value in kept[1:]):
            raise NotComplete("ranks hold different values of a parameter that is not sharded")
        found.append(values[0])
    return found


def file_of(name: str, rank: int) -> str:
    """Return the name of the file in which a rank keeps its part."""
    return f"{name}.{rank}.pt" if rank else f"{name}.pt"
