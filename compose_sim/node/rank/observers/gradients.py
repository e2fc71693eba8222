"""What do backward passes leave in the parameters of DDP models: gradients for all that were wrapped, and for others?"""

from __future__ import annotations

from typing import Any

from ..context import Watch, place
from . import backward
from .models import MOST_NAMES, PENDING, Model, clean, living, sampled, where

BACKWARDS, RETAINED = "gradients.backwards", "gradients.retained"
_STEPS, _AT = "gradients.steps", "gradients.at"


def install() -> None:
    backward.before.append(_before)
    backward.after.append(_after)


def _before(watch: Watch, _: Any, options: dict[str, Any]) -> None:
    memory = watch.memory
    memory[BACKWARDS] = memory.get(BACKWARDS, 0) + 1
    if options.get("retain_graph") or options.get("create_graph"):
        memory[RETAINED] = memory.get(RETAINED, 0) + 1
    if memory.get(PENDING):
        memory[_STEPS], memory[_AT] = watch.steps, place()
        watch.wait_in(f"DDP's gradient all-reduce in backward{where(memory[_AT])}")


def _after(watch: Watch, failed: bool) -> None:
    pending: dict[int, Model] = watch.memory.get(PENDING) or {}
    if not pending:
        return
    watch.wait_in("")
    stepped = watch.steps != watch.memory[_STEPS]  # an optimizer that steps within backward takes the gradients away
    for model in list(pending.values()):
        if failed or stepped or not sampled(watch, model.synchronised) or not _look_for_missing(watch, model):
            del pending[model.index]


def _look_for_missing(watch: Watch, model: Model) -> bool:
    """Remember the wrapped parameters that have no gradient; whether another backward pass may still give them one."""
    ddp = model.reference()
    if ddp is None or ddp.find_unused_parameters or ddp.static_graph:
        return False
    current = {id(parameter): parameter for parameter in ddp.module.parameters()}
    held = [(name, current[key]) for key, name in model.wrapped.items() if key in current]
    without = {name for name, parameter in held if parameter.grad is None and parameter.requires_grad}
    if len(without) == len(held):  # taken away by a hook, or this was another model's pass
        return True
    model.missing = without if model.missing is None else model.missing & without
    model.backward_at = watch.memory[_AT]
    return bool(model.missing)


def foreign(watch: Watch, model: Model, ddp: Any) -> dict[str, list[str]]:
    """The parameters of a model that have a gradient though no DistributedDataParallel wrapped them: new, replaced or unfrozen."""
    covered = {key for each, _ in living(watch) for key in each.wrapped}
    names = set(model.wrapped.values()) | set(model.frozen.values())
    found: dict[str, list[str]] = {}
    for raw, parameter in ddp.module.named_parameters():
        name = clean(raw)
        if id(parameter) in covered or parameter.grad is None or raw in model.ignored:
            continue
        how = "unfrozen" if id(parameter) in model.frozen else "replaced" if name in names else "new"
        found.setdefault(how, []).append(name)
    return {how: listed[:MOST_NAMES] for how, listed in found.items()}
