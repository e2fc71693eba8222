"""Record, in `check`, how gradients are clipped, and whether a GradScaler still had them scaled or a rank saw only its own shards."""

from __future__ import annotations

import sys
import weakref
from dataclasses import dataclass
from typing import Any

from ...records.precautions import Clip, ShardScaling
from .. import tracked
from ..context import RankContext, place
from ..torch_hooks import points
from . import sketches

_CLIPPED, _HELD, _OPTIMIZERS = (f"clipping.{name}" for name in ("clipped", "held", "optimizers"))
_MAX_STEPS, _MAX_TENSORS, _MAX_CALLS = 20, 20, 20


@dataclass
class _Call:
    """A call of clip_grad_norm_ whose optimizer has not stepped since."""

    parameters: set[int]
    limit: float
    norm: Any
    at: Any
    scale: float = 1.0  # by which the gradients were still multiplied


def begin(context: RankContext) -> None:
    if context.mode != "record":
        return
    points.NORM_CLIPPED.subscribe(_clip)
    points.FSDP_CLIPPED.subscribe(_clip_shards)
    points.SCALER_UNSCALES.subscribe(_unscale)
    points.SCALER_STEPS.subscribe(_scaler_step)
    points.OPTIMIZER_MADE.subscribe(_made)
    points.BEFORE_STEP.subscribe(_note_step)
    points.BACKWARD.subscribe(_backward)


def _clip(context: RankContext, call: points.TorchCall) -> points.Steps:
    tensors = points.clipped_tensors(call)
    norm = yield
    _clipped(context, tensors, call.value("max_norm"), norm)


def _clip_shards(context: RankContext, call: points.TorchCall) -> points.Steps:
    norm = yield
    _clipped(context, list(call.owner.parameters()), call.value("max_norm"), norm)


def _clipped(context: RankContext, tensors: list[Any], limit: Any, norm: Any) -> None:
    calls: list[_Call] = context.memory.setdefault(_CLIPPED, [])
    calls.append(_Call({id(each) for each in tensors}, float(limit), norm, place()))
    del calls[:-_MAX_CALLS]


def _unscale(context: RankContext, call: points.TorchCall) -> None:
    _before_unscaling(context, call.owner, call.value("optimizer"))


def _scaler_step(context: RankContext, call: points.TorchCall) -> points.Steps:
    scaler, optimizer = call.owner, call.value("optimizer")
    is_ready = (
        scaler.is_enabled() and scaler._per_optimizer_states[id(optimizer)]["stage"] is call.module.OptState.READY
    )
    if is_ready:
        _before_unscaling(context, scaler, optimizer)  # a fused optimizer divides by itself
    yield
    _take_call(context, optimizer)  # of a step that was skipped, as gradients were infinite


def _before_unscaling(context: RankContext, scaler: Any, optimizer: Any) -> None:
    """Note that what was clipped so far was still scaled."""
    if scaler.is_enabled():
        held = _held(optimizer)
        for call in context.memory.get(_CLIPPED, ()):
            if call.parameters & held:
                call.scale = float(scaler.get_scale())


def _take_call(context: RankContext, optimizer: Any) -> _Call | None:
    """Forget all calls that clipped gradients of the optimizer, and return the last one."""
    calls: list[_Call] = context.memory.get(_CLIPPED, [])
    held = _held(optimizer)
    own = [call for call in calls if call.parameters & held]
    calls[:] = [call for call in calls if not call.parameters & held]
    return own[-1] if own else None


def _held(optimizer: Any) -> set[int]:
    return {id(each) for each in tracked.parameters_of(optimizer)}


def _made(context: RankContext, call: points.TorchCall) -> points.Steps:
    yield
    context.memory.setdefault(_OPTIMIZERS, weakref.WeakKeyDictionary())[call.owner] = 0


def _note_step(context: RankContext, optimizer: Any, *_: Any) -> None:
    known: Any = context.memory.get(_OPTIMIZERS, {})
    number = known.get(optimizer, _MAX_STEPS)
    if number >= _MAX_STEPS:
        return
    known[optimizer] = number + 1
    call = _take_call(context, optimizer)
    if call is not None:
        norm = getattr(call.norm, "full_tensor", lambda: call.norm)()
        context.note(Clip(call.limit, float(norm), call.scale, call.at))
    before, after = context.memory.get(_HELD, {}).get(id(optimizer)), _sums(context, optimizer)
    if before is None or after is None or before.shape != after.shape:
        return
    square = float(before @ before)
    factor = float(before @ after) / square if square else 0.0
    if factor and float((after - factor * before).norm()) <= 1e-3 * float(after.norm()):
        context.note(ShardScaling(tracked.optimizers.number(optimizer), number + 1, factor, _ranks(optimizer), place()))


def _backward(context: RankContext, _: points.TorchCall) -> points.Steps:
    try:
        yield
    finally:
        _keep_sums(context)


def _keep_sums(context: RankContext) -> None:
    known: Any = context.memory.get(_OPTIMIZERS, {})
    held = context.memory.setdefault(_HELD, {})
    for optimizer, number in list(known.items()):
        held[id(optimizer)] = _sums(context, optimizer) if number < _MAX_STEPS else None


def _sums(context: RankContext, optimizer: Any) -> Any:
    """Return the sketches of the gradients of which this rank has only a part, as one tensor; None if there are none."""
    found = []
    for each in _sharded(optimizer)[:_MAX_TENSORS]:
        grad = getattr(each.grad, "_local_tensor", each.grad)
        sums = sketches.sums_of(context, grad) if grad is not None and grad.numel() else None
        found += [sums] if sums is not None else []
    return sys.modules["torch"].cat(found) if found else None


def _sharded(optimizer: Any) -> list[Any]:
    """Return the parameters that FSDP shards: flat ones, or DTensors with a placement that is not a replica."""
    held = tracked.parameters_of(optimizer)
    return [each for each in held if _is_fsdp(each)]


def _is_fsdp(parameter: Any) -> bool:
    placements = getattr(parameter, "placements", ())
    return (
        hasattr(parameter, "_is_flat_param")
        or hasattr(parameter, "_fsdp_flattened")
        or any(each.is_shard() for each in placements)
    )


def _ranks(optimizer: Any) -> tuple[int, ...]:
    mesh = getattr(_sharded(optimizer)[0], "device_mesh", None)
    return tuple(mesh.mesh.flatten().tolist()) if mesh is not None else ()
