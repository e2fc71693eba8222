"""Measure, in a second run of `check`, how the loss changes with a parameter, and what the gradients say of that change.

In each step of the second run, one parameter is moved a little before the forward pass. Copies on several ranks, which have the same
values, are moved alike, and parts are not. After each backward pass the parameter is put back, and all gradients are replaced by those
of the first run, so that both runs go through the same weights.
"""

from __future__ import annotations

import os
import sys
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...records.gradients import LossSlope
from ..context import IN_CHECKPOINT, RankContext
from ..torch_hooks import points
from ..tracked import Outermost, local
from .models import clean
from .optimizers import follow_gradients
from .samples import bytes_of

PROBE = "probe"  # the mode of the second run
_SLOPES = "slopes.slopes"
_STEPS, _FIRST = 24, 2  # steps that are measured, and the first in which a parameter is moved
_PARAMETERS = 5
_MAX_ELEMENTS = 200_000  # of all parameters: gradients are saved after each backward pass
_MAX_CHOSEN = 200_000  # indices
_MAX_BACKWARDS = 16  # of one step
_PROPORTIONAL = 1e-3
_MOVE = 0.003  # relative to the size of the numbers in a parameter


@dataclass
class Slopes:
    """What is measured in this rank."""

    folder: Path
    called: Outermost = field(default_factory=Outermost)  # before the first step
    graded: set[int] = field(default_factory=set)  # parameters that a backward pass gave a gradient
    step: int = 0
    backwards: int = 0  # since the last step
    loss: float | None = None
    moved: Any = None  # the parameter
    name: str = ""
    held: int = 0
    began: dict[int, int] = field(default_factory=dict)  # the hash of what each parameter held at the first step
    product: float | None = None
    direction: Any = None
    kept: Any = None  # its values, while it is moved
    added: dict[int, Any] = field(default_factory=dict)  # the gradients after the last backward pass, by parameter
    detached: set[int] = field(default_factory=set)  # addresses of values whose gradients a forward pass has left out
    sent: set[int] = field(default_factory=set)  # addresses of what messages gave other ranks
    is_cut: bool = False  # a forward pass has used values without their gradients, or computes in few digits
    choices: int = (
        0  # a hash of what forward passes have chosen by values since the last step, before another module was called
    )
    pending: int = 0  # a hash of later choices, such as the classes of a metric
    is_over: bool = False


def begin(context: RankContext) -> None:
    folder = os.environ.get("COMPOSESIM_RECORD")
    if context.mode in ("record", PROBE) and folder:
        context.memory[_SLOPES] = Slopes(Path(folder))
        points.MODULE_CALLED.subscribe(_module_called)
        points.BACKWARD.subscribe(_backward)
        follow_gradients(_before_step, lambda _: None)
        points.AUTOCAST_ENTERED.subscribe(_autocast)
        points.CHOSEN.subscribe(_choose)
        if context.mode == PROBE:
            points.DETACHED.subscribe(_detach)
            points.MESSAGE.subscribe(_sent)


def _module_called(context: RankContext, module: Any, *_: Any) -> None:
    slopes: Slopes = context.memory[_SLOPES]
    slopes.choices, slopes.pending = (31 * slopes.choices + slopes.pending) % (1 << 61), 0
    if slopes.is_over or not sys.modules["torch"].is_grad_enabled():
        slopes.is_cut |= slopes.kept is not None
        return
    if slopes.step == 0:
        slopes.called.number(module)
        slopes.is_cut |= _computes_low(module)
    if context.mode == PROBE and slopes.step >= _FIRST and slopes.kept is None:
        _move(slopes)


def _computes_low(module: Any) -> bool:
    from ..replay.wrapped_models import computes_low

    return (hasattr(module, "mixed_precision") or hasattr(module, "_get_fsdp_state")) and computes_low(module)


def _detach(context: RankContext, call: points.TorchCall) -> None:
    """Note that a forward pass uses a value without its gradient: then the gradient rightly leaves out a part of the change."""
    slopes: Slopes = context.memory[_SLOPES]
    if slopes.kept is not None and call.owner.requires_grad and not call.owner.is_leaf:
        slopes.detached.add(call.owner.data_ptr())


def _sent(context: RankContext, call: points.TorchCall) -> None:
    """Note what is sent: if this rank has no loss of its own, another stage gets it, and sends its gradient back."""
    tensors = [each.tensor for each in call.value("p2p_op_list") or ()] or [call.value("tensor")]
    context.memory[_SLOPES].sent |= {each.data_ptr() for each in tensors if each is not None}


def _choose(context: RankContext, call: points.TorchCall) -> points.Steps:
    """Note what a forward pass chooses by values that depend on the parameters, such as the expert of a token."""
    slopes: Slopes = context.memory[_SLOPES]
    result = yield
    if slopes.is_over or not getattr(call.arguments[0] if call.arguments else None, "requires_grad", False):
        return
    chosen = result[1] if isinstance(result, tuple) else result if call.name.startswith("arg") else None
    if chosen is not None and chosen.numel() <= _MAX_CHOSEN:
        slopes.pending = zlib.crc32(bytes_of(chosen), slopes.pending)  # in their order, unlike hash_of
    elif chosen is not None:
        slopes.is_cut |= slopes.kept is not None


def _autocast(context: RankContext, _: points.TorchCall) -> None:
    context.memory[_SLOPES].is_cut = True


def _leave_padding(slopes: Slopes) -> None:
    """Leave out the row of an embedding that stands for padding: it has no gradient on purpose."""
    for each in (module for model in slopes.called.modules() for module in model.modules()):
        row = getattr(each, "padding_idx", None)
        if (
            row is not None
            and getattr(each, "weight", None) is slopes.moved
            and len(slopes.direction) == len(each.weight)
        ):
            slopes.direction[row] = 0


def _gradient(parameter: Any) -> Any:
    """Return the gradient of what the rank holds of a parameter; None if there is none, or if it still has to be reduced."""
    gradient = parameter.grad
    is_like_it = getattr(gradient, "placements", None) == getattr(parameter, "placements", None)
    return None if gradient is None or not is_like_it else local(gradient)


def _parameters(slopes: Slopes) -> list[tuple[str, Any]]:
    """Return the parameters that are trained; none if they are not plain tensors of many digits, or too many."""
    torch = sys.modules["torch"]
    found = {
        id(each): (clean(name), each)
        for model in slopes.called.modules()
        for name, each in model.named_parameters()
        if each.requires_grad
    }
    precise = (torch.float32, torch.float64)
    plain = all(type(local(each)) is torch.Tensor and each.dtype in precise for _, each in found.values())
    few = sum(each.numel() for _, each in found.values()) <= _MAX_ELEMENTS
    return [*found.values()] if plain and few else []


def _move(slopes: Slopes) -> None:
    """Move the parameter of this step in a direction that depends on its values alone."""
    from ..replay.inputs import hash_of

    torch = sys.modules["torch"]
    trained = [each for each in _parameters(slopes) if id(each[1]) in slopes.graded]
    if not trained:
        return
    if slopes.moved is None:
        chosen = trained[:: -(-len(trained) // _PARAMETERS)]
        slopes.name, slopes.moved = chosen[(slopes.step - _FIRST) % len(chosen)]
        values = local(slopes.moved)
        slopes.held = hash_of(values)
        draws = torch.Generator(device="cpu").manual_seed(slopes.held % (1 << 63))
        size = (float(values.double().square().mean()) if values.numel() else 0.0) ** 0.5 or 0.1
        direction = _MOVE * size * torch.randn(values.shape, generator=draws, device="cpu")
        slopes.direction = direction.to(values.device, values.dtype)
        _leave_padding(slopes)
    slopes.kept = local(slopes.moved).clone()
    with torch._C.DisableTorchFunction():  # it is no update by hand
        local(slopes.moved).add_(slopes.direction)


def _backward(context: RankContext, call: points.TorchCall) -> points.Steps:
    slopes: Slopes = context.memory[_SLOPES]
    root, parameter = points.root_of(call), slopes.moved
    slopes.pending = 0
    if slopes.is_over:
        return
    if getattr(root, "numel", None) is not None and root.numel() == 1 and call.value("grad_tensors") is None:
        slopes.loss = (slopes.loss or 0.0) + float(root.item())
    base = _gradient(parameter) if parameter is not None else None
    base = base.clone() if base is not None else None
    yield
    gradient = _gradient(parameter) if parameter is not None else None
    if gradient is not None:
        gradient = gradient if base is None else gradient - base
        slopes.product = (slopes.product or 0.0) + float((gradient * slopes.direction).sum())
    _put_back(slopes)
    if slopes.backwards < _MAX_BACKWARDS:
        _keep(context, slopes)
    slopes.backwards += 1


def _put_back(slopes: Slopes) -> None:
    if slopes.kept is not None:
        with sys.modules["torch"]._C.DisableTorchFunction():  # as above
            # Unnoticed by autograd: other micro-batches may still have their backward pass.
            local(slopes.moved).data.copy_(slopes.kept)
        slopes.kept = None


def _keep(context: RankContext, slopes: Slopes) -> None:
    """Save the gradients in the first run, and use them in the second."""
    from ..replay.batches import compact
    from ..replay.inputs import hash_of

    torch = sys.modules["torch"]
    path = slopes.folder / f"slope.{context.events.rank}.{slopes.step}.{slopes.backwards}.pt"
    trained = _parameters(slopes)
    gradients = [_gradient(each) for _, each in trained]
    if slopes.step == 0:
        slopes.began = {id(each): hash_of(local(each)) for _, each in trained}
    slopes.graded |= {id(each) for (_, each), gradient in zip(trained, gradients) if gradient is not None}
    context.memory[IN_CHECKPOINT] = True
    try:
        if context.mode != PROBE:
            torch.save(compact(gradients), path)
            return
        recorded = torch.load(path, map_location="cpu") if path.exists() else []
    finally:
        context.memory[IN_CHECKPOINT] = False
    for (_, each), gradient, first in zip(trained, gradients, recorded):
        if gradient is not None and first is not None:
            gradient.copy_(first)
            slopes.added[id(each)] = first


def _scaled(slopes: Slopes, parameter: Any) -> float | None:
    """Return by what a gradient was multiplied between the backward pass and the step; None if it was changed otherwise."""
    gradient, added = _gradient(parameter), slopes.added.get(id(parameter))
    if gradient is None or added is None or gradient.shape != added.shape:
        return None
    one, other = gradient.double().flatten(), added.double().flatten()
    square = float(other @ other)
    times = float(one @ other) / square if square > 0 else 0.0
    return times if times and float((one - times * other).norm()) < _PROPORTIONAL * abs(times) * square**0.5 else None


def _before_step(context: RankContext, _: Any) -> None:
    slopes: Slopes = context.memory[_SLOPES]
    if slopes.is_over:
        return
    _put_back(slopes)  # if no backward pass came
    trained = [each for _, each in _parameters(slopes)]
    scales = {id(each): _scaled(slopes, each) for each in trained if slopes.moved is not None}
    noted = LossSlope(
        slopes.step,
        slopes.loss,
        slopes.name,
        slopes.held,
        slopes.product,
        slopes.is_cut or bool(slopes.detached - (slopes.sent if slopes.loss is None else set())),
        scales.get(id(slopes.moved)),
        max((each for each in scales.values() if each is not None), default=None),
        slopes.began.get(id(slopes.moved), 0),
        slopes.choices,
    )
    context.note(noted)
    ends = slopes.step + 1 >= _STEPS or slopes.backwards > _MAX_BACKWARDS or not trained
    slopes.step, slopes.backwards, slopes.loss, slopes.is_cut = slopes.step + 1, 0, None, False
    slopes.name, slopes.moved, slopes.direction, slopes.product = "", None, None, None
    slopes.added, slopes.choices, slopes.detached, slopes.sent = {}, 0, set(), set()
    if ends:
        slopes.is_over = True
        if context.mode == PROBE:
            context.flush()
            raise SystemExit(0)
