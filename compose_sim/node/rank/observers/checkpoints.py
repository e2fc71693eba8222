"""Record saves, shards saved as if they were whole, state dicts whose names do not match, and tensors loaded to another rank's GPU."""

from __future__ import annotations

import io
import sys
import time
import weakref
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any, Callable

from ...records.precautions import LoadedElsewhere, LoadedState, SavedShards, UnfilledState
from .. import tracked
from ..context import IN_CHECKPOINT, RankContext, place
from ..torch_hooks import points
from ..tracked import local

_PREFIXES = ("module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module.")
_MAX_NAMES, _MAX_NOTED, _DEPTH, _MAX_HASHED = 5, 20, 5, 4_000_000
_NOTED = "checkpoints.noted"
LOADED = "checkpoints.loaded"  # the modules that were given a state dict


def install() -> None:
    points.STATE_LOADED.subscribe(_load_state)
    points.LOADED.subscribe(_load)
    points.LOADED_SHARDED.subscribe(_look_for_unfilled)
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


def _look_for_unfilled(context: RankContext, call: points.TorchCall) -> None:
    """Note optimizers whose state is saved, and not loaded: only what the state dict has already is filled."""
    folder, state = call.value("checkpoint_id"), call.value("state_dict") or {}
    if context.mode != "record" or folder is None or not Path(folder, ".metadata").exists():
        return
    optimizers = [name for name, each in state.items() if isinstance(each, Mapping) and each.get("param_groups")]
    empty = [name for name in optimizers if state[name].get("state") == {}]
    reader = sys.modules["torch.distributed.checkpoint"].FileSystemReader(folder)
    saved = reader.read_metadata().state_dict_metadata if empty else {}
    for name in empty:
        entries = sum(str(key).startswith(f"{name}.state.") for key in saved)
        if entries:
            context.note(UnfilledState(str(name), entries, place()))


def _note_shards(context: RankContext, saved: Any) -> None:
    """Note which tensors are saved that are this rank's shard of a parameter, or the state that an optimizer has for one."""
    torch: Any = sys.modules["torch"]
    for shards in _shards():
        found, parts = [], 1
        for name, each in _named_tensors(saved, _DEPTH) if shards else ():
            held = local(each)
            for shard, divided in shards.get(tuple(held.shape), ()):
                if type(held) is torch.Tensor and torch.equal(held.to(shard), shard):
                    found.append(name)
                    parts = max(parts, divided)
                    break
        if 2 * len(found) >= sum(map(len, shards.values())) > 0:
            context.note(SavedShards(len(found), found[0], parts, place()))
            return


_Shards = dict[tuple[int, ...], list[tuple[Any, int]]]  # by shape, with the number of parts


def _shards() -> tuple[_Shards, _Shards]:
    """Return what this rank holds of sharded parameters and of their states, without constants: new biases are all alike."""
    parameters: _Shards = {}
    states: _Shards = {}
    flat = _flat_parts()
    for one, _ in tracked.optimizers.living():
        for each in (each for group in one.param_groups for each in group["params"]):
            part = flat.get(id(each))
            if part is not None and part.length == prod(part.shape):
                continue  # with NO_SHARD
            parts = _divided(each) if part is None else len(part.ranks)
            if parts < 2:
                continue
            own = local(each)
            tensors = [state for state in one.state.get(each, {}).values() if hasattr(state, "numel")]
            for found, tensor in ((parameters, own), *((states, local(state)) for state in tensors)):
                is_constant = not tensor.numel() or bool((tensor == tensor.reshape(-1)[0]).all())
                if not is_constant and tensor.numel() == own.numel():
                    found.setdefault(tuple(tensor.shape), []).append((tensor, parts))
    return parameters, states


def _flat_parts() -> Mapping[int, Any]:
    from ..replay.shards import flat_parts  # which imports torch
    from ..replay.wrapped_models import models_of

    return flat_parts(models_of("torch.distributed.fsdp", "FullyShardedDataParallel"))


def _divided(tensor: Any) -> int:
    """Return into how many parts a DTensor is divided; 1 for what is none, or is whole on each rank."""
    if not hasattr(tensor, "placements"):
        return 1
    return prod(size for size, how in zip(tensor.device_mesh.mesh.shape, tensor.placements) if how.is_shard())


def follow_loaded(notice: Callable[[RankContext, Any, bool], None]) -> None:
    """Call a function with what a rank loads, and with the list of dicts that another sends; the last value says which it is."""

    def load(context: RankContext, call: points.TorchCall) -> points.Steps:
        loaded = yield
        notice(context, call.value("state_dict") if loaded is None else loaded, False)

    def receive(context: RankContext, call: points.TorchCall) -> points.Steps:
        if call.name == "broadcast_object_list":
            yield
            notice(context, [each for each in call.value("object_list") if isinstance(each, Mapping)], True)

    points.LOADED.subscribe(load)
    points.LOADED_SHARDED.subscribe(load)
    points.COLLECTIVE.subscribe(receive)


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


def content_of(_: RankContext, saved: Any) -> int:
    """Return a hash of the tensors in what is saved; 0 if there are none, or too many numbers."""
    from ..replay.inputs import hash_of  # which imports torch

    tensors = [local(each) for each in _tensors(saved, _DEPTH)]
    few = sum(each.numel() for each in tensors) <= _MAX_HASHED
    plain = all(type(each) is sys.modules["torch"].Tensor and not each.is_complex() for each in tensors)
    return sum(number * hash_of(each) for number, each in enumerate(tensors, 1)) % (1 << 62) if few and plain else 0


def _tensors(value: Any, depth: int) -> Iterator[Any]:
    return (each for _, each in _named_tensors(value, depth))


def _named_tensors(value: Any, depth: int, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, sys.modules["torch"].Tensor):
        yield name, value
    elif depth and isinstance(value, (Mapping, list, tuple)):
        for key, each in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _named_tensors(each, depth - 1, str(key))
