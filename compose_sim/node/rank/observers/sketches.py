"""Sketch, in `check`, the gradient that each rank computes by itself and the one that the optimizer uses, at the first steps.

A sketch is a few weighted sums of a tensor's elements, with the same weights on every rank. It is linear: the sketch of a mean over
ranks is the mean of their sketches, so the checks compare gradients of all ranks without any communication between ranks.

A rank's gradient is seen before DDP or the script reduces it, in hooks of autograd's AccumulateGrad nodes: hooks of the parameters
themselves would be pickled with the model.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...records.gradients import Sketch, SketchedStep, SketchedTensor, SketchedTensors
from .. import tracked
from ..context import RankContext, here, place
from ..torch_hooks import points
from . import parameter_names
from .autograd_graph import operation
from .collectives import issued
from .models import clean, copied_model, living

STEPS = 20  # of each optimizer
_SUMS = 4
_MAX_TENSORS, _MAX_ELEMENTS = 200, 1 << 16  # spread evenly
_MAX_PASSES, _PASS_TENSORS = 8, 16  # of which the gradients of each backward pass are recorded too
_OWN, _OPTIMIZERS, _WINDOW, _WEIGHTS = (f"sketches.{name}" for name in ("own", "optimizers", "window", "weights"))
_REDUCTION_MEAN = 1
_DEPTH, _MAX_TERMS = 8, 6
_KEEP_SCALE = ("Neg", "ToCopy", "View", "Squeeze", "Clone", "Alias")


class LossTerm(NamedTuple):
    """A term of a loss: a mean or a sum over samples, times a number."""

    is_mean: bool
    times: float  # without its sign
    each: (
        float | None
    )  # what multiplies the loss of one sample or target; None if their number is that of a tensor's elements


class LossScale(NamedTuple):
    """The terms of a loss, put together: `None` where they differ, or where a term is neither a mean nor a sum."""

    mean_times: float | None  # if all terms are means, the largest number that multiplies one
    sum_times: float | None  # the same of sums
    each_times: float | None  # what multiplies the loss of one sample or target, if that is counted in one way


_UNKNOWN = LossScale(None, None, None)


@dataclass
class Own:
    """What backward passes have added to one parameter's gradient since it was cleared."""

    node: Any  # keeps the hook alive
    total: Any = None  # a sketch, as a tensor
    passes: list[Any] = field(default_factory=list)  # the terms of the total; none if something else is part of it
    backwards: int = 0
    elements: int = 0


@dataclass
class Window:
    """What happened since the last step: the collectives by phase, and what the backward passes started from."""

    stepped_at: int = 0  # collectives so far
    began_at: int | None = None
    ended_at: int = 0
    scales: set[LossScale] = field(default_factory=set)


def begin(context: RankContext) -> None:
    if context.mode == "record":
        points.OPTIMIZER_MADE.subscribe(_made)
        points.BACKWARD.subscribe(_backward)


def _made(context: RankContext, call: points.TorchCall) -> points.Steps:
    yield
    _follow(context, call.owner)


def _follow(context: RankContext, optimizer: Any) -> None:
    """Hook the parameters of an optimizer that are not yet hooked, or have moved to another device and lost their hook."""
    owns: dict[int, Own] = context.memory.setdefault(_OWN, {})
    torch: Any = sys.modules["torch"]
    for parameter in _chosen(optimizer):
        if not _is_plain(parameter) or not parameter.requires_grad:
            continue
        with torch.enable_grad():
            node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
        if id(parameter) in owns and owns[id(parameter)].node is node:
            continue
        own = owns[id(parameter)] = Own(node)
        node.register_prehook(_hook(own, parameter))


def _hook(own: Own, parameter: Any) -> Any:
    def add(gradients: Any) -> None:
        context = here()
        if context is not None and own.node is not None and gradients[0] is not None:
            context.guard(__name__, _add, own, parameter, gradients[0])

    return add


def _add(context: RankContext, own: Own, parameter: Any, gradient: Any) -> None:
    held = sums_of(context, parameter.grad)
    if held is None or not bool(held.any()):  # cleared since the last backward pass
        own.total, own.passes, own.backwards = None, [], 0
    elif own.total is None and parameter.grad is not None:
        own.total = held  # not cleared since the last step: what was used is still part of it
    sums = sums_of(context, gradient)
    own.passes = [*own.passes, sums] if own.total is None or own.passes else []
    own.total = sums if own.total is None or sums is None else own.total + sums
    own.backwards, own.elements = own.backwards + 1, gradient.numel()


def before_step(context: RankContext, optimizer: Any, index: int, steps: int) -> None:
    """Sketch what the step is about to use."""
    if steps >= STEPS:
        return
    owns: dict[int, Own] = context.memory.setdefault(_OWN, {})
    chosen, models = _chosen(optimizer), list(living(context))
    known: dict[int, Any] = context.memory.setdefault(_OPTIMIZERS, {})
    rows = tuple(_rows(optimizer, chosen, models))
    if known.get(index) != rows:
        known[index] = rows
        context.note(SketchedTensors(index, rows))
        numbered = {row.name: each for row, each in zip(rows, chosen) if row.model is None and " of group " in row.name}
        context.guard(parameter_names.__name__, parameter_names.note_names, index, numbered)
    mine = [owns.get(id(each)) for each in chosen]
    window: Window = context.memory.setdefault(_WINDOW, Window())
    scale = next(iter(window.scales)) if len(window.scales) == 1 else _UNKNOWN
    began = window.ended_at if window.began_at is None else window.began_at
    copy_of, copies = copied_model(optimizer, models)
    context.memory["sketches.pending"] = {
        "own": tuple(
            None if own is None or not _fits(own, each) else _plain(own.total) for own, each in zip(mine, chosen)
        ),
        "used": tuple(_plain(sums_of(context, each.grad)) for each in chosen),
        "before": tuple(_plain(sums_of(context, each)) for each in chosen),
        "passes": _passes(mine[:_PASS_TENSORS]),
        "backwards": max((own.backwards for own in mine if own is not None), default=0),
        "mean_times": scale.mean_times,
        "sum_times": scale.sum_times,
        "each_times": scale.each_times,
        "in_forward": max(0, began - window.stepped_at),
        "in_backward": max(0, window.ended_at - began),
        "copy_of": copy_of,
        "copies": copies,
    }


def after_step(context: RankContext, optimizer: Any, index: int, nth: int) -> None:
    """Record the step, and forget what led to it."""
    pending = context.memory.pop("sketches.pending", None)
    if pending is None:
        return
    owns: dict[int, Own] = context.memory.setdefault(_OWN, {})
    chosen = _chosen(optimizer)
    after = tuple(_plain(sums_of(context, each)) for each in chosen)
    context.note(SketchedStep(index, nth, after=after, type=type(optimizer).__name__, at=place(), **pending))
    for each in chosen:
        own = owns.get(id(each))
        if own is not None:
            own.total, own.passes, own.backwards = None, [], 0
            if nth >= STEPS:
                own.node = None
    context.memory[_WINDOW] = Window(stepped_at=issued(context))
    if nth < STEPS:
        _follow(context, optimizer)


def _passes(mine: list[Own | None]) -> tuple[tuple[Sketch, ...], ...]:
    """Return what each of several backward passes gave to these parameters, if all of them took part in all passes."""
    found = [own.passes if own is not None else [] for own in mine]
    counts = {len(each) for each in found}
    if len(counts) != 1 or not 1 < counts.pop() <= _MAX_PASSES:
        return ()
    return tuple(tuple(map(_plain, each)) for each in zip(*found))


def _backward(context: RankContext, call: points.TorchCall) -> points.Steps:
    window: Window = context.memory.setdefault(_WINDOW, Window())
    if window.began_at is None:
        window.began_at = issued(context)
    is_loss = call.value("grad_tensors") is None  # else the output of a pipeline's stage, which is no mean over samples
    window.scales.add(scale_of(getattr(points.root_of(call), "grad_fn", None)) if is_loss else _UNKNOWN)
    try:
        yield
    finally:
        context.memory.setdefault(_WINDOW, Window()).ended_at = issued(context)


def scale_of(node: Any) -> LossScale:
    """Return by which numbers a loss multiplies the means or the sums over samples that it is made of."""
    terms = list(_terms(node, 1.0, _MAX_TERMS))
    known = [each for each in terms if each is not None]
    times = max((each.times for each in known), default=None) if len(known) == len(terms) else None
    counted = {each.each for each in known if each.each is not None}
    return LossScale(
        times if all(each.is_mean for each in known) else None,
        times if not any(each.is_mean for each in known) else None,
        counted.pop() if len(counted) == 1 else None,
    )


def _terms(node: Any, times: float, more: int) -> Iterator[LossTerm | None]:
    """Yield the terms of a loss, up to `more` and one; None for one that is neither a mean nor a sum."""
    for _ in range(_DEPTH):
        name = operation(node)
        inputs = [each for each, _ in getattr(node, "next_functions", ()) if each is not None]
        if name in ("Mean", "Sum"):
            is_mean = name == "Mean"
            yield LossTerm(is_mean, abs(times), None if is_mean else abs(times))
            return
        if getattr(node, "_saved_reduction", 0):
            yield _reduced(node, abs(times))
            return
        if name in ("Add", "Sub") and len(inputs) > 1:  # terms with weights, as in reinforcement learning
            if not more or getattr(node, "_saved_alpha", 1) != 1:
                break
            for each in inputs:
                yield from _terms(each, times, more - 1)
            return
        if len(inputs) != 1:
            break
        if name in ("Mul", "Div"):
            number = getattr(node, "_saved_other", None)
            number = getattr(node, "_saved_self", None) if number is None and name == "Mul" else number
            number = float(number) if number is not None and getattr(number, "numel", lambda: 1)() == 1 else 0.0
            if not number:
                break
            times = times * number if name == "Mul" else times / number
        elif name not in _KEEP_SCALE:
            break
        node = inputs[0]
    yield None


def _reduced(node: Any, times: float) -> LossTerm:
    """Return the term of a loss function: the mean of a cross entropy leaves out targets that are to be ignored."""
    is_mean = node._saved_reduction == _REDUCTION_MEAN
    if not is_mean:
        return LossTerm(False, times, times)
    counted = getattr(node, "_saved_total_weight", None)
    weight = float(counted) if counted is not None and counted.numel() == 1 else 0.0
    return LossTerm(True, times, times / weight if weight > 0 else None)


def _chosen(optimizer: Any) -> list[Any]:
    parameters = tracked.parameters_of(optimizer)
    return parameters[:: 1 + (len(parameters) - 1) // _MAX_TENSORS] if parameters else []


def _rows(optimizer: Any, chosen: list[Any], models: list[Any]) -> list[SketchedTensor]:
    names = {
        **{id(each): (None, own) for own, each in tracked.numbered(optimizer)},
        **{id(each): (ddp.index, clean(name)) for ddp, it in models for name, each in it.module.named_parameters()},
    }
    return [SketchedTensor(*names[id(each)], tuple(each.shape)) for each in chosen]


def _is_plain(tensor: Any) -> bool:
    torch: Any = sys.modules["torch"]
    is_plain = type(tensor.detach()) is torch.Tensor and tensor.layout is torch.strided
    # The first FSDP gives a parameter another size in forward: backward fails if its AccumulateGrad has been made before.
    is_flat = hasattr(tensor, "_is_flat_param") or hasattr(tensor, "_fsdp_flattened")
    is_hookable = is_plain and not is_flat and tensor.is_leaf and tensor.is_floating_point()
    return bool(is_hookable and tensor.device.type != "meta")


def _fits(own: Own, parameter: Any) -> bool:
    """Return whether the gradient that was computed has the shape of the one that is used: FSDP shards it in between."""
    return parameter.grad is not None and own.elements == int(parameter.grad.numel())


def _plain(sums: Any) -> Sketch:
    return None if sums is None else tuple(float(f"{each:.9g}") for each in sums.tolist())


def sums_of(context: RankContext, tensor: Any) -> Any:
    """Return the weighted sums of a tensor's elements, or of evenly spread ones of a large tensor."""
    torch: Any = sys.modules["torch"]
    if tensor is None or type(tensor.detach()) is not torch.Tensor or tensor.layout is not torch.strided:
        return None
    with torch.no_grad():
        flat = tensor.detach().reshape(-1)
        few = flat[:: 1 + flat.numel() // _MAX_ELEMENTS].to("cpu", torch.float64)
        return _weights(context, few.numel()) @ few


def _weights(context: RankContext, count: int) -> Any:
    """Return the weights, the same on every rank: no random numbers, which are the script's."""
    known: dict[int, Any] = context.memory.setdefault(_WEIGHTS, {})
    if count not in known:
        torch: Any = sys.modules["torch"]
        positions = torch.arange(1, count + 1, dtype=torch.float64)
        known[count] = torch.stack(
            [torch.cos(positions * positions * turn) for turn in (0.731, 1.377, 2.113, 2.897)[:_SUMS]]
        )
    return known[count]
