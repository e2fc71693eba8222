"""How far is the training, and what did each optimizer step find? Steps are counted, noted, and a few of them a second told."""

from __future__ import annotations

import sys
import time
import traceback
import weakref
from dataclasses import dataclass, field
from types import FrameType, ModuleType
from typing import Any

from ...shared.import_hooks import after_import
from ..context import Watch, here, place
from . import gradients, states
from .models import FLUSHED, FORWARDS, Model, living, sampled

_SECONDS_BETWEEN_STEPS = 0.2
_NEXT_AT, _TOLD, _ALL, _STEPPING, _FAILED = (
    f"optimizers.{name}" for name in ("next_at", "told", "all", "stepping", "failed")
)
_MOST_NOTED = 1000  # steps of an optimizer; of later ones each hundredth

_hooks: list[Any] = []


@dataclass(eq=False)
class Stepper:
    """One optimizer; its index is its place in the order of first steps."""

    index: int
    reference: Any
    steps: int = 0
    models: dict[int, Model] = field(default_factory=dict)  # those with parameters in it, when last looked at
    seen: dict[int, tuple[int, int]] = field(default_factory=dict)  # of each, its forward passes before the last step
    backwards: tuple[int, int] = (0, 0)


def install() -> None:
    after_import("torch.optim.optimizer", _after_optimizer)
    after_import("torch._dynamo", _after_dynamo)


def end(watch: Watch) -> None:
    if watch.steps > watch.memory.get(_TOLD, 0):
        _tell_step(watch)
    failing = sys.exc_info()[0] is not None
    for stepper in watch.memory.get(_ALL, {}).values():
        optimizer = stepper.reference()
        # A device that waits for ranks which are gone would not answer: of a script that fails, only memory is read.
        if optimizer is not None and (not failing or _is_on_cpu(optimizer)):
            _survive(watch, states.note_state, optimizer, stepper.index, stepper.steps, True)


def _after_optimizer(module: ModuleType) -> None:
    _register(module, _before_step, _after_step)


def _after_dynamo(_: ModuleType) -> None:
    """Steps can be compiled from now on: have the hooks called at every run of the compiled code, not seen once by the compiler."""
    for hook in _hooks:
        hook.remove()
    _hooks.clear()
    disable = sys.modules["torch"].compiler.disable
    _register(sys.modules["torch.optim.optimizer"], disable(_before_step), disable(_after_step))


def _register(module: Any, before: Any, after: Any) -> None:
    _hooks.append(module.register_optimizer_step_pre_hook(before))
    _hooks.append(module.register_optimizer_step_post_hook(after))


def _before_step(optimizer: Any, *_: Any) -> None:
    watch = here()
    if watch is None:
        return
    stepping: list[int] = watch.memory.setdefault(_STEPPING, [])
    if stepping:  # an optimizer made of others, such as ZeroRedundancyOptimizer; or one whose step raised an error
        stepping[:] = [each for each in stepping if each != id(optimizer) and _is_stepping(each)]
    stepping.append(id(optimizer))
    if len(stepping) == 1:
        _survive(watch, _look_before, optimizer)


def _look_before(watch: Watch, optimizer: Any) -> None:
    stepper = _stepper(watch, optimizer)
    if stepper.steps == 0 or sampled(watch, stepper.steps):
        # Here and not after the step: what the script averages or sets after a step belongs to it.
        states.note_state(watch, optimizer, stepper.index, stepper.steps)


def _after_step(optimizer: Any, *_: Any) -> None:
    watch = here()
    if watch is None:
        return
    stepping: list[int] = watch.memory.setdefault(_STEPPING, [])
    if len(stepping) > 1 and stepping[-1] == id(optimizer):
        stepping.pop()  # a part of a step
        return
    stepping.clear()
    watch.steps += 1
    watch.progress.advance("steps")
    _survive(watch, _note_step, optimizer)
    now = time.monotonic()
    if now >= watch.memory.get(_NEXT_AT, 0.0):
        watch.memory[_NEXT_AT] = now + _SECONDS_BETWEEN_STEPS
        _tell_step(watch)
    if watch.thorough or sampled(watch, watch.steps) or not watch.memory.get(FLUSHED):
        watch.flush()  # else the next forward pass of a DDP model does it: one write a step is enough
    watch.memory[FLUSHED] = False


def _note_step(watch: Watch, optimizer: Any) -> None:
    stepper = _stepper(watch, optimizer)
    stepper.steps += 1
    closely = sampled(watch, stepper.steps)
    if closely:
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        stepper.models = {
            model.index: model
            for model, ddp in living(watch)
            if any(id(each) in held for each in ddp.module.parameters())
        }
    if closely or stepper.steps <= _MOST_NOTED or stepper.steps % 100 == 0:
        more = _look_closely(watch, optimizer, stepper) if closely else {}
        watch.note(
            "step",
            step=watch.steps,
            optimizer=stepper.index,
            nth=stepper.steps,
            at=place(),
            sync=watch.synchronisations,
            forwards=watch.memory.get(FORWARDS, 0),
            **more,
        )
    stepper.seen = {index: (model.forwards, model.synchronised) for index, model in stepper.models.items()}
    stepper.backwards = _backwards(watch)


def _look_closely(watch: Watch, optimizer: Any, stepper: Stepper) -> dict[str, Any]:
    """How each DDP model in the optimizer came by its gradients since the optimizer's last step."""
    held = {id(parameter): parameter for group in optimizer.param_groups for parameter in group["params"]}
    found = []
    for index, model in stepper.models.items():
        ddp = model.reference()
        if ddp is None:
            continue
        forwards, synchronised = stepper.seen.get(index, (0, 0))
        graded = sum(1 for key in model.wrapped if key in held and held[key].grad is not None)
        counts = {"forwards": model.forwards - forwards, "reduced": model.synchronised - synchronised, "graded": graded}
        found.append({"ddp": index, **counts, **gradients.foreign(watch, model, ddp)})
    backwards, retained = (now - then for now, then in zip(_backwards(watch), stepper.backwards))
    return {"models": found, "backwards": backwards, "retained": retained, "type": type(optimizer).__name__}


def _backwards(watch: Watch) -> tuple[int, int]:
    return watch.memory.get(gradients.BACKWARDS, 0), watch.memory.get(gradients.RETAINED, 0)


def _stepper(watch: Watch, optimizer: Any) -> Stepper:
    known: dict[int, Stepper] = watch.memory.setdefault(_ALL, {})
    stepper = known.get(id(optimizer))
    if stepper is None or stepper.reference() is not optimizer:
        index = watch.memory["optimizers.count"] = watch.memory.get("optimizers.count", -1) + 1
        stepper = known[id(optimizer)] = Stepper(index=index, reference=weakref.ref(optimizer))
    return stepper


def _is_stepping(optimizer: int) -> bool:
    """Whether a step of the optimizer of this id is on the stack: where it raised an error, its end was not told."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "step" and id(frame.f_locals.get("self")) == optimizer:
            return True
        frame = frame.f_back
    return False


def _is_on_cpu(optimizer: Any) -> bool:
    return all(parameter.device.type == "cpu" for group in optimizer.param_groups for parameter in group["params"])


def _survive(watch: Watch, function: Any, *values: Any) -> None:
    try:
        function(watch, *values)
    except Exception:  # noqa: BLE001 - this runs inside somebody's training
        if not watch.memory.get(_FAILED):
            watch.memory[_FAILED] = True
            watch.note("observer-failed", observer=__name__, traceback=traceback.format_exc())


def _tell_step(watch: Watch) -> None:
    watch.memory[_TOLD] = watch.steps
    watch.events.emit("step", step=watch.steps)
