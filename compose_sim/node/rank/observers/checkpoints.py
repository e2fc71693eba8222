"""Record saves, shards saved as if they were whole, state dicts whose names do not match, and tensors loaded to another rank's GPU."""

from __future__ import annotations

import io
import sys
import time
import weakref
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from ...records.precautions import LoadedElsewhere, LoadedState, SavedShards
from .. import tracked
from ..context import IN_CHECKPOINT, RankContext, place
from ..torch_hooks import points

_PREFIXES = ("module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module.")
_MAX_NAMES, _MAX_NOTED, _DEPTH = 5, 20, 3
_NOTED = "checkpoints.noted"
LOADED = "checkpoints.loaded"  # the modules that were given a state dict


def install() -> None:
    points.STATE_LOADED.subscribe(_load_state)
    points.LOADED.subscribe(_load)
    for point in (
        points.SAVED,
        points.SAVED_SHARDED,
        points.LOADED_SHARDED,
    ):  # not load, with which data sets read samples
        point.subscribe(_time)


def _time(context: RankContext, call: points.TorchCall) -> points.Steps:
    in_memory = isinstance(call.value("f"), io.BytesIO)
    if in_memory or context.memory.get(IN_CHECKPOINT):
        return
    if context.thorough and call.value("obj") is not None:
        _note_shards(context, call.value("obj"))
    context.memory[IN_CHECKPOINT], began = True, time.monotonic()
    try:
        yield
    finally:
        context.memory[IN_CHECKPOINT] = False
        context.times.work("checkpoint", began)


def _note_shards(context: RankContext, saved: Any) -> None:
    """Note which plain tensors are saved that are this rank's shard of a parameter."""
    torch: Any = sys.modules["torch"]
    shards, parts = _shards(), 1
    found = []
    for name, each in _named_tensors(saved, _DEPTH) if shards else ():
        for local, divided in shards.get(tuple(each.shape), ()):
            if type(each.detach()) is torch.Tensor and torch.equal(each.detach().to(local), local):
                found.append(name)
                parts = max(parts, divided)
                break
    if 2 * len(found) >= sum(map(len, shards.values())) > 0:
        context.note(SavedShards(len(found), found[0], parts, place()))


def _shards() -> dict[tuple[int, ...], list[tuple[Any, int]]]:
    """Return what this rank holds of sharded parameters, by shape, with the number of parts; no constants: new biases are all alike."""
    found: dict[tuple[int, ...], list[tuple[Any, int]]] = {}
    for one, _ in tracked.optimizers.living():
        for each in (each for group in one.param_groups for each in group["params"] if hasattr(each, "placements")):
            sizes = [size for size, how in zip(each.device_mesh.mesh.shape, each.placements) if how.is_shard()]
            local = each.to_local().detach()
            is_constant = not local.numel() or bool((local == local.reshape(-1)[0]).all())
            if not is_constant and tuple(local.shape) != tuple(each.shape):
                found.setdefault(tuple(local.shape), []).append((local, prod(sizes)))
    return found


def _load_state(context: RankContext, call: points.TorchCall) -> points.Steps:
    own, given = _names(call.owner, call.value("state_dict"))
    context.memory.setdefault(LOADED, weakref.WeakSet()).add(call.owner)
    result = None
    try:
        result = yield
    finally:
        _note_state(context, own, given, result, call.error is not None)


def _names(module: Any, state: Any) -> tuple[set[str], tuple[str, ...]]:
    """Return the names that the module has and those that it is given: loading may change both."""
    own = {name for name, _ in module.named_parameters()} | {name for name, _ in module.named_buffers()}
    return own, tuple(str(name) for name in state)


def _note_state(context: RankContext, own: set[str], given: tuple[str, ...], result: Any, raised: bool) -> None:
    if not own or not given or own & set(given):
        return
    missing = len(own) if result is None else len(getattr(result, "missing_keys", ()))
    unexpected = given if result is None else tuple(getattr(result, "unexpected_keys", ()))
    count = context.memory[_NOTED] = context.memory.get(_NOTED, 0) + 1
    if missing and unexpected and count <= _MAX_NOTED:
        prefix = next((each for each in _PREFIXES if _explains(each, own, given)), "")
        context.note(LoadedState(len(own), missing, unexpected[:_MAX_NAMES], prefix, raised, place()))


def _explains(prefix: str, own: set[str], given: tuple[str, ...]) -> bool:
    """Return whether most names match once this prefix is removed from those given, or added to them."""
    removed = {name[len(prefix) :] for name in given if name.startswith(prefix)}
    added = {prefix + name for name in given}
    return 2 * max(len(removed & own), len(added & own)) > len(own)


def _load(context: RankContext, call: points.TorchCall) -> points.Steps:
    loaded = yield
    if call.value("map_location") is None:
        _note_devices(context, loaded)


def _note_devices(context: RankContext, loaded: Any) -> None:
    torch: Any = sys.modules["torch"]
    found = sorted({each.device.index or 0 for each in _tensors(loaded, _DEPTH) if each.device.type == "cuda"})
    current = torch.cuda.current_device() if found else 0
    if any(each != current for each in found):
        context.note(LoadedElsewhere(tuple(found), current, place()))


def _tensors(value: Any, depth: int) -> Iterator[Any]:
    return (each for _, each in _named_tensors(value, depth))


def _named_tensors(value: Any, depth: int, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, sys.modules["torch"].Tensor):
        yield name, value
    elif depth and isinstance(value, (Mapping, list, tuple)):
        for key, each in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _named_tensors(each, depth - 1, str(key))
