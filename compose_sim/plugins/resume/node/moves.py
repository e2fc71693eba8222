"""Record when state is saved to files and loaded from them, and into which objects of torch it is loaded."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from ....node.rank import tracked
from ....node.rank.context import RankContext, place
from ....node.rank.torch_hooks import points
from ....node.records.resumption import MoveKind, StateMoved
from . import interruption
from .randoms import random_states

OPTIMIZER_LOADED = points.Point("torch.optim.optimizer", "Optimizer.load_state_dict")
SCHEDULER_LOADED = points.Point("torch.optim.lr_scheduler", "*.load_state_dict", optional=True)
SCALER_LOADED = points.Point("torch.amp.grad_scaler", "GradScaler.load_state_dict", optional=True)
RANDOM_SET = points.Point("torch", "set_rng_state", "random.set_rng_state", optional=True)
SAFETENSORS_SAVED = points.Point("safetensors.torch", "save_file", "save_model", optional=True)
SAFETENSORS_LOADED = points.Point("safetensors.torch", "load_file", "load_model", optional=True)
_MAX_NAMES, _DEEP = 40, 2
_MAX_NOTED = 2000
_COUNT = "resume.moves"


def follow() -> None:
    """Follow them from now on."""
    for point in (points.SAVED, points.SAVED_SHARDED, SAFETENSORS_SAVED):
        point.subscribe(_save)
    for point in (points.LOADED, points.LOADED_SHARDED, SAFETENSORS_LOADED):
        point.subscribe(_load)
    points.STATE_LOADED.subscribe(_into_module)
    OPTIMIZER_LOADED.subscribe(_into_optimizer)
    SCHEDULER_LOADED.subscribe(_into_scheduler)
    SCALER_LOADED.subscribe(_into_scaler)
    RANDOM_SET.subscribe(_set_random)
    points.ITERATOR_MADE.subscribe(_iterate)


def _save(context: RankContext, call: points.TorchCall) -> points.Steps:
    watched, began = context.memory["resume.state"], time.monotonic()
    path = _path(call)
    saved = next(
        (value for name in ("obj", "state_dict", "tensors", "model") if (value := call.value(name)) is not None), None
    )
    names = _names(saved)
    if path and "resume.refuse" in context.memory:
        context.memory["resume.refuse"](path)
    interruption.may_tear(context, watched, path)
    yield
    _note(context, "file", path=path, names=names, loaded=False, seconds=time.monotonic() - began)


def _load(context: RankContext, call: points.TorchCall) -> points.Steps:
    path = _path(call)
    loaded = yield
    _note(context, "file", path=path, names=_names(call.value("state_dict") if loaded is None else loaded))


def _into_module(context: RankContext, call: points.TorchCall) -> points.Steps:
    names = _names(call.value("state_dict"))
    yield
    _note(context, "module", names=names)


def _into_optimizer(context: RankContext, call: points.TorchCall) -> points.Steps:
    number, state = tracked.optimizers.number(call.owner), call.value("state_dict")
    yield
    if not isinstance(state, Mapping) or state.get("state"):  # Accelerate loads an empty state to move it to a device
        _note(context, "optimizer", number=number)


def _into_scheduler(context: RankContext, call: points.TorchCall) -> points.Steps:
    is_optimizer = hasattr(call.owner, "param_groups")  # the module of schedulers imports that class too
    yield
    if not is_optimizer:
        _note(context, "scheduler")


def _into_scaler(context: RankContext, call: points.TorchCall) -> points.Steps:
    yield
    _note(context, "scaler")


def _set_random(context: RankContext, call: points.TorchCall) -> points.Steps:
    yield
    _note_random(context)


def _iterate(context: RankContext, call: points.TorchCall) -> None:
    """Note the random states before the iterator draws from them."""
    if not context.memory["resume.state"].steps:
        _note_random(context)


def _note_random(context: RankContext) -> None:
    _note(context, "random", random=random_states())


def _path(call: points.TorchCall) -> str:
    """Return the file or folder, without symbolic links; "" for an object in memory."""
    names = ("f", "checkpoint_id", "filename")
    value = next((found for name in names if (found := call.value(name)) is not None), None)
    storage = call.value("storage_writer") or call.value("storage_reader")
    value = getattr(storage, "path", None) if value is None else value
    value = value if isinstance(value, (str, bytes, os.PathLike)) else getattr(value, "name", None)
    return os.path.realpath(os.fsdecode(value)) if isinstance(value, (str, bytes, os.PathLike)) else ""


def _names(value: Any, depth: int = _DEEP, prefix: str = "") -> tuple[str, ...]:
    """Return the first keys of nested dicts: `model`, `optimizer`, `optimizer.state`."""
    found: list[str] = []
    if isinstance(value, Mapping):
        for key in list(value)[:_MAX_NAMES]:
            found.append(f"{prefix}{key}"[:80])
            is_small = depth and isinstance(value[key], Mapping) and len(value[key]) < _MAX_NAMES
            found += _names(value[key], depth - 1, f"{prefix}{key}.") if is_small else ()
    return tuple(found[:_MAX_NAMES])


def _note(context: RankContext, kind: MoveKind, *, loaded: bool = True, **values: Any) -> None:
    count = context.memory[_COUNT] = context.memory.get(_COUNT, 0) + 1
    if count <= _MAX_NOTED and "torch" in sys.modules:
        watched = context.memory["resume.state"]
        is_own = threading.current_thread() is threading.main_thread()  # else training goes on meanwhile
        backwards = watched.backwards if is_own else 0
        context.note(StateMoved(kind, loaded, step=watched.steps, backwards=backwards, at=place(2), **values))
