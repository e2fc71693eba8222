"""Record, in `check`, how gradients are clipped, and whether a GradScaler still had them scaled or a rank saw only its own shards."""

from __future__ import annotations

import sys
import weakref
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from ...records.precautions import Clip, ShardScaling
from .. import tracked
from ..context import RankContext, here, place
from ..torch_hooks import after_import, wrap
from . import backward, sketches
from .training import follow_steps

_CLIPPED, _HELD, _OPTIMIZERS = (f"clipping.{name}" for name in ("clipped", "held", "optimizers"))
_MOST_STEPS, _MOST_TENSORS, _MOST_CALLS = 20, 20, 20


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
    after_import("torch.nn.utils", _after_utils)
    after_import("torch.distributed.fsdp.fully_sharded_data_parallel", _after_fsdp)
    after_import("torch.amp.grad_scaler", _after_scaler)
    after_import("torch.optim.optimizer", _after_optimizer)
    follow_steps(before=_before_step)
    backward.after.append(_end_backward)


def _after_utils(module: ModuleType) -> None:
    @wrap(module, "clip_grad_norm_")
    def clip(original: Any, parameters: Any, max_norm: Any, *arguments: Any, **options: Any) -> Any:
        tensors = [parameters] if hasattr(parameters, "grad") else list(parameters)
        norm = original(tensors, max_norm, *arguments, **options)
        context = here()
        if context is not None:
            context.guard(__name__, _clipped, tensors, max_norm, norm)
        return norm


def _after_fsdp(module: ModuleType) -> None:
    @wrap(module.FullyShardedDataParallel, "clip_grad_norm_")
    def clip(original: Any, self: Any, max_norm: Any, *arguments: Any, **options: Any) -> Any:
        norm = original(self, max_norm, *arguments, **options)
        context = here()
        if context is not None:
            context.guard(__name__, _clipped, list(self.parameters()), max_norm, norm)
        return norm


def _clipped(context: RankContext, tensors: list[Any], limit: Any, norm: Any) -> None:
    calls: list[_Call] = context.memory.setdefault(_CLIPPED, [])
    calls.append(_Call({id(each) for each in tensors}, float(limit), norm, place()))
    del calls[:-_MOST_CALLS]


def _after_scaler(module: ModuleType) -> None:
    @wrap(module.GradScaler, "unscale_")
    def unscale(original: Any, self: Any, optimizer: Any) -> Any:
        context = here()
        if context is not None:
            context.guard(__name__, _before_unscaling, self, optimizer)
        return original(self, optimizer)

    @wrap(module.GradScaler, "step")
    def step(original: Any, self: Any, optimizer: Any, *arguments: Any, **options: Any) -> Any:
        context = here()
        if context is not None and self.is_enabled():
            context.guard(__name__, _before_scaler_step, self, optimizer, module.OptState.READY)
        returned = original(self, optimizer, *arguments, **options)
        if context is not None:
            context.guard(__name__, _take_call, optimizer)  # of a step that was skipped, as gradients were infinite
        return returned


def _before_scaler_step(context: RankContext, scaler: Any, optimizer: Any, ready: Any) -> None:
    if scaler._per_optimizer_states[id(optimizer)]["stage"] is ready:
        _before_unscaling(context, scaler, optimizer)  # a fused optimizer divides by itself


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
    return {id(each) for group in optimizer.param_groups for each in group["params"]}


def _after_optimizer(module: ModuleType) -> None:
    @wrap(module.Optimizer, "__init__")
    def make(original: Any, self: Any, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        context = here()
        if context is not None:
            context.memory.setdefault(_OPTIMIZERS, weakref.WeakKeyDictionary())[self] = 0


def _before_step(optimizer: Any, *_: Any) -> None:
    context = here()
    if context is not None:
        context.guard(__name__, _note_step, optimizer)


def _note_step(context: RankContext, optimizer: Any) -> None:
    known: Any = context.memory.get(_OPTIMIZERS, {})
    number = known.get(optimizer, _MOST_STEPS)
    if number >= _MOST_STEPS:
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


def _end_backward(context: RankContext, _: bool) -> None:
    known: Any = context.memory.get(_OPTIMIZERS, {})
    held = context.memory.setdefault(_HELD, {})
    for optimizer, number in list(known.items()):
        held[id(optimizer)] = _sums(context, optimizer) if number < _MOST_STEPS else None


def _sums(context: RankContext, optimizer: Any) -> Any:
    """Return the sketches of the gradients of which this rank has only a part, as one tensor; None if there are none."""
    found = []
    for each in _sharded(optimizer)[:_MOST_TENSORS]:
        grad = getattr(each.grad, "_local_tensor", each.grad)
        sums = sketches.sums_of(context, grad) if grad is not None and grad.numel() else None
        found += [sums] if sums is not None else []
    return sys.modules["torch"].cat(found) if found else None


def _sharded(optimizer: Any) -> list[Any]:
    """Return the parameters that FSDP shards: flat ones, or DTensors with a placement that is not a replica."""
    held = [each for group in optimizer.param_groups for each in group["params"]]
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
