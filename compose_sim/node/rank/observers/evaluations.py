"""Hash models that `check` sees called but not trained, and models that are about to be wrapped, to compare ranks.

Such a model is evaluated, or helps to train another: a teacher, a reference policy, a frozen backbone. Modules have a global hook for
calls. The outermost module that is called is the model; those inside it are passed over.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...records.models import EvaluatedModel, TensorRow, WeightsBeforeSharding, WeightsBeforeWrapping
from ...records.record import Place
from .. import tracked
from ..context import RankContext, place
from ..torch_hooks import points
from . import states
from .checkpoints import LOADED
from .models import living
from .optimizers import parameters_that_stepped

_SEEN, _TRAINED, _DIVIDED = "evaluations.seen", "evaluations.trained", "evaluations.divided"
_MAX_NOTED, _MAX_TENSORS = 40, 500


@dataclass(frozen=True)
class _Divided:
    """The parameters of a module that `fully_shard` has divided."""

    ranks: tuple[int, ...]
    whole: dict[str, str | None]  # name -> hash of the tensor before
    parts: dict[str, Any]  # name -> weak reference to this rank's part
    own: dict[str, str | None]  # name -> hash of that part
    loaded: bool
    at: Place | None


def begin(context: RankContext) -> None:
    if context.mode == "record":
        points.MODULE_CALLED.subscribe(_before_call)
        points.DDP_MADE.subscribe(_note_weights)
        points.FULLY_SHARDED.subscribe(_before_sharding)
        points.BEFORE_STEP.subscribe(_note_sharded)


def _before_call(context: RankContext, module: Any, given: Any) -> None:
    first = next(module.parameters(), None)
    if first is None or (module.training and first.requires_grad and sys.modules["torch"].is_grad_enabled()):
        return
    is_held = _is_held(context, first)
    if not module.training or not is_held:
        _note_evaluated(context, module, is_held, given)


def _is_held(context: RankContext, first: Any) -> bool:
    """Return whether an optimizer holds a module's first weight, or none has stepped: an average is often never put into eval mode."""
    steps, held = context.memory.get(_TRAINED, (-1, frozenset()))
    if steps != context.steps:
        held = frozenset(map(id, parameters_that_stepped(context)))
        context.memory[_TRAINED] = context.steps, held
    return not held or id(first) in held


def _note_weights(context: RankContext, call: points.TorchCall) -> None:
    entries = list(_entries(call.value("module")))
    rows = tuple(row for row, _ in entries)
    context.note(WeightsBeforeWrapping(tracked.models.made, rows, _hashed(entries)))


def _before_sharding(context: RankContext, call: points.TorchCall) -> points.Steps:
    """Remember what is divided: only the values at the first step tell whether it is loaded later, also on other ranks."""
    torch: Any = sys.modules["torch"]
    at, given = place(), call.value("module")
    modules = [*given] if isinstance(given, (list, tuple)) else [given]
    whole = {
        name: parameter
        for each in modules
        for name, parameter in each.named_parameters()
        if type(parameter.data) is torch.Tensor and not parameter.is_meta
    }
    own = set(map(id, whole.values()))
    loaded = any(id(each) in own for given_state in context.memory.get(LOADED, ()) for each in given_state.parameters())
    few = list(whole)[:_MAX_TENSORS]
    hashes = dict(zip(few, states.hashes_of([whole[name].data for name in few], whole=True)))
    yield
    for each in modules:
        parts = {name: it for name, it in each.named_parameters() if name in hashes and hasattr(it, "device_mesh")}
        if parts:
            mesh = next(iter(parts.values())).device_mesh
            ranks = tuple(mesh.mesh.flatten().tolist())
            made = {name: weakref.ref(part) for name, part in parts.items()}
            divided = _Divided(ranks, hashes, made, _hashes_of(parts), loaded, at)
            context.memory.setdefault(_DIVIDED, []).append(divided)


def _note_sharded(context: RankContext, *_: Any) -> None:
    for each in context.memory.pop(_DIVIDED, ()):
        parts = {name: part for name, made in each.parts.items() if (part := made()) is not None}
        now = _hashes_of(parts)
        same = tuple(name for name in parts if now[name] == each.own[name])
        hashes = tuple(each.whole[name] for name in same)
        replicated = any(placement.is_replicate() for part in parts.values() for placement in part.placements)
        context.note(WeightsBeforeSharding(each.ranks, same, hashes, each.loaded, replicated, each.at))


def _hashes_of(parts: dict[str, Any]) -> dict[str, str | None]:
    return dict(zip(parts, states.hashes_of([part.to_local().detach() for part in parts.values()], whole=True)))


def _note_evaluated(context: RankContext, module: Any, is_held: bool, given: Any) -> None:
    # Module -> steps; -1 if it is inside another.
    seen: Any = context.memory.setdefault(_SEEN, weakref.WeakKeyDictionary())
    steps = seen.get(module)
    if steps == -1 or steps == context.steps or sum(each > 0 for each in seen.values()) > _MAX_NOTED:
        return
    if steps is None:
        for each in module.modules():
            seen[each] = -1
    seen[module] = context.steps
    entries = list(_entries(module))
    if not context.steps or not any(row.kind == "parameter" for row, _ in entries):
        return
    wrapped = any(each is module for _, ddp in living(context) for each in ddp.modules())
    rows = tuple(row for row, _ in entries)
    hashes, inputs = _hashed(entries), _hash_of_first(given)
    loaded = any(map(context.memory.get(LOADED, ()).__contains__, module.modules()))
    context.note(
        EvaluatedModel(type(module).__name__, context.steps, rows, hashes, wrapped, is_held, loaded, inputs, place())
    )


def _hash_of_first(given: Any) -> str | None:
    torch: Any = sys.modules["torch"]
    plain = (each for each in given if type(each) is torch.Tensor and each.layout is torch.strided and each.numel())
    first = next(plain, None)
    return None if first is None else states.hashes_of([first.detach()], whole=True)[0]


def _hashed(entries: list[tuple[TensorRow, Any]]) -> tuple[str | None, ...]:
    return states.hashes_of([tensor for _, tensor in entries], whole=True)


def _entries(module: Any) -> Iterator[tuple[TensorRow, Any]]:
    """Yield the parameters, and the running statistics of BatchNorm."""
    batchnorm: Any = sys.modules["torch.nn.modules.batchnorm"]
    named = list(module.named_parameters())[:_MAX_TENSORS]
    for name, parameter in named:
        yield from states.entry("parameter", None, name, parameter)
    for prefix, each in module.named_modules():
        # In training mode, a module does not use them.
        if isinstance(each, batchnorm._NormBase) and each.running_mean is not None and not each.training:
            yield from states.entry("buffer", None, f"{prefix}.running_mean".lstrip("."), each.running_mean)
