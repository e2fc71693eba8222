"""Find the parameters of DDP models that backward passes leave without a gradient, and those with one that DDP does not know."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..context import RankContext, place, where
from ..torch_hooks import points
from ..tracked import parameters_of
from .models import PENDING, Model, clean, living, sampled

BACKWARDS, ENDED, RETAINED = "gradients.backwards", "gradients.ended", "gradients.retained"  # counts of backward passes
_STEPS, _AT = "gradients.steps", "gradients.at"


class ForeignParameters(NamedTuple):
    """Names of parameters with a gradient that the DDP wrapper never had, had as another object, or had without requires_grad."""

    new: list[str]
    replaced: list[str]
    unfrozen: list[str]


def install() -> None:
    points.BACKWARD.subscribe(_backward)


def _backward(context: RankContext, call: points.TorchCall) -> points.Steps:
    memory = context.memory
    memory[BACKWARDS] = memory.get(BACKWARDS, 0) + 1
    if call.value("retain_graph") or call.value("create_graph"):
        memory[RETAINED] = memory.get(RETAINED, 0) + 1
    pending: dict[int, Model] = memory.get(PENDING) or {}
    if pending:
        memory[_STEPS], memory[_AT] = context.steps, place()
        model = next(iter(pending.values()))
        context.wait_in(f"DDP's gradient all-reduce in backward{where(memory[_AT])}", model.group, len(model.ranks))
    try:
        yield
    finally:
        memory[ENDED] = memory.get(ENDED, 0) + 1
        _after(context, call.error is not None)


def _after(context: RankContext, failed: bool) -> None:
    pending: dict[int, Model] = context.memory.get(PENDING) or {}
    if not pending:
        return
    context.wait_in("")
    stepped = context.steps != context.memory[_STEPS]  # an optimizer that steps within backward clears the gradients
    for model in list(pending.values()):
        if failed or stepped or not sampled(context, model.synchronized) or not _look_for_missing(context, model):
            del pending[model.index]


def _look_for_missing(context: RankContext, model: Model) -> bool:
    """Remember the wrapped parameters without a gradient; return whether another backward pass may still give them one."""
    ddp = model.reference()
    if ddp is None or ddp.find_unused_parameters or ddp.static_graph:
        return False
    current = {id(parameter): parameter for parameter in ddp.module.parameters()}
    held = [(name, current[key]) for key, name in model.wrapped.items() if key in current]
    without = {name for name, parameter in held if parameter.grad is None and parameter.requires_grad}
    if len(without) == len(held):  # cleared by a hook, or the pass of another model
        return True
    model.missing = without if model.missing is None else model.missing & without
    model.backward_at = context.memory[_AT]
    return bool(model.missing)


def foreign(context: RankContext, model: Model, ddp: Any) -> ForeignParameters:
    """Return the parameters that have a gradient although no DDP model wrapped them."""
    covered = {key for each, _ in living(context) for key in each.wrapped}
    names = set(model.wrapped.values()) | set(model.frozen.values())
    found = ForeignParameters([], [], [])
    for raw, parameter in ddp.module.named_parameters():
        name = clean(raw)
        if id(parameter) in covered or parameter.grad is None or raw in model.ignored:
            continue
        known = found.unfrozen if id(parameter) in model.frozen else found.replaced if name in names else found.new
        known.append(name)
    return found


def left_out(context: RankContext, held: dict[int, Any]) -> list[str]:
    """
    Return the parameters with gradients that no optimizer holds, if an optimizer holds as many that no module has any longer.

    `held` are the optimizer's own, by id.
    """
    from ..replay.wrapped_models import models_of  # which imports torch

    inside = {id(each): (clean(name), each) for _, ddp in living(context) for name, each in ddp.named_parameters()}
    idle = {key: each for key, each in held.items() if key not in inside and each.requires_grad and each.grad is None}
    if not idle:
        return []
    optimizers = models_of("torch.optim.optimizer", "Optimizer")
    trained = {id(each) for one in optimizers for each in parameters_of(one)}
    missed = [(name, each) for key, (name, each) in inside.items() if key not in trained and each.grad is not None]
    if sorted(each.dim() for _, each in missed) != sorted(each.dim() for each in idle.values()):
        return []
    modules = models_of("torch.nn.modules.module", "Module")
    is_in_use = any(id(each) in idle for module in modules for each in module.parameters(recurse=False))
    return [] if is_in_use else [name for name, _ in missed]
