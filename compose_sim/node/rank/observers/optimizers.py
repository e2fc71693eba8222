"""Count and record optimizer steps, also those that compute the gradients in a closure."""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Callable

from ...records.models import OptimizerStep, SteppedModel
from .. import tracked
from ..context import RankContext
from ..observations import encoded
from ..torch_hooks import points, updates_by_hand
from . import gradients, sketches, states
from .models import FLUSHED, MAX_NAMES, Model, living, sampled

_MADE = "optimizers.made"
_ALL, _STEPPING, _BEGAN = "optimizers.all", "optimizers.stepping", "optimizers.began"
_MAX_NOTED = 1000  # steps per optimizer; then every hundredth


@dataclass(eq=False)
class Stepper:
    """One optimizer that has stepped; `tracked.py` numbers them."""

    index: int
    reference: Any
    steps: int = 0
    models: dict[int, Model] = field(default_factory=dict)  # those with parameters in this optimizer, when last sampled
    seen: dict[int, tuple[int, int]] = field(default_factory=dict)  # by model: the forward passes before the last step
    backwards: tuple[int, int] = (0, 0)  # before this step
    began: int = 0  # backward passes before the step was called


def install() -> None:
    points.OPTIMIZER_MADE.subscribe(_made)
    points.BEFORE_STEP.subscribe(_before_step)
    points.AFTER_STEP.subscribe(_after_step)


def _made(context: RankContext, call: points.TorchCall) -> points.Steps:
    yield
    tracked.optimizers.number(call.owner)
    # Backward passes before this are not those of its first step.
    context.memory.setdefault(_MADE, {})[id(call.owner)] = _backwards(context)


def end(context: RankContext) -> None:
    failing = sys.exc_info()[0] is not None
    for stepper in context.memory.get(_ALL, {}).values():
        optimizer = stepper.reference()
        # A device that waits for ranks that are gone would never answer: if the script failed, read main memory only.
        if optimizer is not None and (not failing or _is_on_cpu(optimizer)):
            context.guard(__name__, states.note_state, optimizer, stepper.index, stepper.steps, True)


def parameters_that_stepped(context: RankContext) -> Iterator[Any]:
    """Yield the parameters of all optimizers that have stepped."""
    for stepper in context.memory.get(_ALL, {}).values():
        optimizer = stepper.reference()
        yield from tracked.parameters_of(optimizer) if optimizer is not None else ()


def _before_step(context: RankContext, optimizer: Any, *_: Any) -> None:
    stepping: list[int] = context.memory.setdefault(_STEPPING, [])
    if stepping:  # an optimizer made of others, such as ZeroRedundancyOptimizer, or one whose step raised
        stepping[:] = [each for each in stepping if each != id(optimizer) and _is_stepping(each)]
    stepping.append(id(optimizer))
    if len(stepping) == 1:
        _look_before(context, optimizer)
        context.memory[_BEGAN] = time.monotonic()


def _look_before(context: RankContext, optimizer: Any) -> None:
    stepper = _stepper(context, optimizer)
    stepper.began, _ = _backwards(context)
    if stepper.steps == 0 or sampled(context, stepper.steps):
        # Not right after the step: what the script averages or sets after a step belongs to that step.
        states.note_state(context, optimizer, stepper.index, stepper.steps)
    if context.mode == "record":
        context.guard(sketches.__name__, sketches.before_step, optimizer, stepper.index, stepper.steps)


def _after_step(context: RankContext, optimizer: Any, *_: Any) -> None:
    stepping: list[int] = context.memory.setdefault(_STEPPING, [])
    if len(stepping) > 1 and stepping[-1] == id(optimizer):
        stepping.pop()  # part of a step
        return
    stepping.clear()
    context.times.work("optimizer", context.memory.get(_BEGAN) or time.monotonic())
    context.count_step()
    context.times.step_ended(context.steps)
    context.guard(__name__, _note_step, optimizer)
    if context.thorough or sampled(context, context.steps) or not context.memory.get(FLUSHED):
        context.flush()  # else the next forward pass of a DDP model does: one write per step is enough
    context.memory[FLUSHED] = False


def _note_step(context: RankContext, optimizer: Any) -> None:
    stepper = _stepper(context, optimizer)
    stepper.steps += 1
    closely, at = sampled(context, stepper.steps), updates_by_hand.place_of_step(context)
    if closely:
        held = {id(each) for each in tracked.parameters_of(optimizer)}
        stepper.models = {
            model.index: model
            for model, ddp in living(context)
            if any(id(each) in held for each in ddp.module.parameters())
        }
        more = _look_closely(context, optimizer, stepper)
        context.note(OptimizerStep(context.steps, stepper.index, stepper.steps, at, **more))
    elif stepper.steps <= _MAX_NOTED or stepper.steps % 100 == 0:
        fields = f'"step":{context.steps},"optimizer":{stepper.index},"nth":{stepper.steps},"at":{encoded(at)}'
        context.observations.note_often(OptimizerStep, fields)
    stepper.seen = {index: (model.forwards, model.synchronized) for index, model in stepper.models.items()}
    stepper.backwards = _backwards(context)
    if context.mode == "record":
        context.guard(sketches.__name__, sketches.after_step, optimizer, stepper.index, stepper.steps)


def _look_closely(context: RankContext, optimizer: Any, stepper: Stepper) -> dict[str, Any]:
    """Return the fields of a sampled step: how the gradients of each DDP model came about since the optimizer's last step."""
    held = {id(each): each for each in tracked.parameters_of(optimizer)}
    found = []
    for index, model in stepper.models.items():
        ddp = model.reference()
        if ddp is None:
            continue
        forwards, synchronized = stepper.seen.get(index, (0, 0))
        graded = sum(1 for key in model.wrapped if key in held and held[key].grad is not None)
        foreign = gradients.foreign(context, model, ddp)
        found.append(
            SteppedModel(
                ddp=index,
                forwards=model.forwards - forwards,
                reduced=model.synchronized - synchronized,
                graded=graded,
                new=tuple(foreign.new[:MAX_NAMES]),
                replaced=tuple(foreign.replaced[:MAX_NAMES]),
                unfrozen=tuple(foreign.unfrozen[:MAX_NAMES]),
            )
        )
    backwards, retained = (now - then for now, then in zip(_backwards(context), stepper.backwards))
    rates = [group.get("lr") for group in optimizer.param_groups]
    return {
        "models": tuple(found),
        "backwards": backwards,
        "within": _backwards(context)[0] - stepper.began,
        "retained": retained,
        "rates": tuple(rates) if all(isinstance(rate, float) for rate in rates) else (),  # a tensor may be on a device
        "type": type(optimizer).__name__,
        "left_out": tuple(gradients.left_out(context, held)[:MAX_NAMES]) if context.thorough and found else (),
    }


def _backwards(context: RankContext) -> tuple[int, int]:
    return context.memory.get(gradients.BACKWARDS, 0), context.memory.get(gradients.RETAINED, 0)


def _stepper(context: RankContext, optimizer: Any) -> Stepper:
    known: dict[int, Stepper] = context.memory.setdefault(_ALL, {})
    stepper = known.get(id(optimizer))
    if stepper is None or stepper.reference() is not optimizer:
        since = context.memory.get(_MADE, {}).get(id(optimizer), (0, 0))
        index = tracked.optimizers.number(optimizer)
        stepper = known[id(optimizer)] = Stepper(index=index, reference=weakref.ref(optimizer), backwards=since)
    return stepper


def _is_stepping(optimizer: int) -> bool:
    """Return whether a step of the optimizer with this id is on the stack: if it raised, no hook reported its end."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "step" and id(frame.f_locals.get("self")) == optimizer:
            return True
        frame = frame.f_back
    return False


def _is_on_cpu(optimizer: Any) -> bool:
    return all(each.device.type == "cpu" for each in tracked.parameters_of(optimizer))


_Follow = Callable[[RankContext, Any], None]


def follow_gradients(complete: _Follow, again: Callable[[RankContext], None]) -> None:
    """
    Call `complete(context, optimizer)` at each step, before it uses the gradients.

    Call `again(context)` whenever an optimizer calls the closure once more within a step.
    """

    def before(context: RankContext, optimizer: Any, arguments: Any, options: Any) -> Any:
        given = len(arguments) > 1  # the first is the optimizer itself
        closure = arguments[1] if given else options.get("closure")
        if not callable(closure):
            complete(context, optimizer)
            return None
        calls = 0

        def computing() -> Any:
            nonlocal calls
            result = closure()
            calls += 1
            if calls == 1:
                context.guard(complete.__module__, complete, optimizer)
            else:
                context.guard(again.__module__, again)
            return result

        if given:
            return (optimizer, computing, *arguments[2:]), options
        return arguments, {**options, "closure": computing}

    before.__module__ = complete.__module__
    points.BEFORE_STEP.subscribe(before)
