"""Plant one known mistake into the script of a rank, for `check --self-test`: the checks should find it.

Unlike an observer, a mistake changes what the script computes. It is planted through the same points, below the observers: they see it
as the script's own.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Callable

from ...records.script import MistakePlanted
from ..context import RankContext
from ..observers import operands
from ..tracked import parameters_of
from . import points

VARIABLE = "COMPOSESIM_MISTAKE"
_ODD = 1  # the rank on which a mistake of one rank is planted
_DONE = "mistakes.done"


def begin() -> None:
    """Set the hooks of the mistake that the environment names, if it names one."""
    name = os.environ.get(VARIABLE, "")
    if name in _BEFORE_STEP:
        points.BEFORE_STEP.subscribe(_BEFORE_STEP[name], first=True)
    for point, subscriber in _AROUND.get(name, ()):
        point.subscribe(subscriber)


def _planted(context: RankContext) -> None:
    """Note once that the mistake is in the script."""
    if not context.memory.get(_DONE):
        context.memory[_DONE] = True
        context.note(MistakePlanted(os.environ[VARIABLE]))


def _is_odd(context: RankContext) -> bool:
    return context.events.rank == _ODD


def _other_rate(context: RankContext, optimizer: Any, *_: Any) -> None:
    """Double the learning rate on one rank."""
    if _is_odd(context) and not context.memory.get(_DONE):
        rated = [group for group in optimizer.param_groups if "lr" in group]
        if not rated:
            return
        for group in rated:
            group["lr"] = group["lr"] * 2
        _planted(context)


def _other_gradient(context: RankContext, optimizer: Any, *_: Any) -> None:
    """Halve a gradient on one rank, after it was reduced."""
    if not _is_odd(context):
        return
    held = [each for each in parameters_of(optimizer) if each.grad is not None]
    if held:
        with sys.modules["torch"].no_grad():
            held[-1].grad.mul_(0.5)
        _planted(context)


def _unreduced_model(context: RankContext, call: points.TorchCall) -> points.Steps:
    """Let the backward pass of a DDP model reduce nothing."""
    ddp = call.owner
    if not ddp.require_backward_grad_sync:
        return
    ddp.require_backward_grad_sync = False
    _planted(context)
    try:
        yield
    finally:
        ddp.require_backward_grad_sync = True


def _unreduced_gradient(context: RankContext, call: points.TorchCall) -> None:
    """Leave out an all-reduce of gradients, on all ranks."""
    tensor = call.value("tensor")
    if call.name == "all_reduce" and not call.value("async_op") and operands.kind_of(context, tensor) == "gradient":
        _planted(context)
        call.answer(None)


def _outside(context: RankContext, call: points.TorchCall) -> points.Steps:
    """Hide a parameter from DistributedDataParallel while it wraps the model."""
    trained = [each for each in call.value("module").parameters() if each.requires_grad]
    if len(trained) < 2:
        return
    trained[-1].requires_grad_(False)
    try:
        yield
    finally:
        trained[-1].requires_grad_(True)
    _planted(context)


def _other_weights(context: RankContext, call: points.TorchCall) -> points.Steps:
    """Change a weight on one rank after DistributedDataParallel has made all equal."""
    yield
    trained = [each for each in call.owner.module.parameters() if each.requires_grad]
    if _is_odd(context) and trained:
        with sys.modules["torch"].no_grad():
            trained[0].mul_(1.01).add_(0.001)
        _planted(context)


def _same_share(context: RankContext, call: points.TorchCall) -> None:
    """Give one rank the samples of rank 0."""
    distributed = sys.modules["torch.distributed"]
    if _is_odd(context) and (call.value("num_replicas") or distributed.get_world_size()) > 1:
        call.replace("rank", 0)
        if call.value("num_replicas") is None:
            call.replace("num_replicas", distributed.get_world_size())
        _planted(context)


def _fixed_epoch(context: RankContext, call: points.TorchCall) -> None:
    """Ignore the number of the epoch."""
    _planted(context)
    call.answer(None)


def _sum(context: RankContext, call: points.TorchCall) -> None:
    """Multiply the loss by the number of ranks, as if gradients were added but not divided."""
    distributed = sys.modules["torch.distributed"]
    loss = points.root_of(call)
    if distributed.is_initialized() and getattr(loss, "ndim", 1) == 0 and call.value("grad_tensors") is None:
        call.replace("tensors", loss * distributed.get_world_size())
        _planted(context)


def _same_randomness(context: RankContext, call: points.TorchCall) -> points.Steps:
    """Let all ranks draw the same numbers in a forward pass."""
    torch: Any = sys.modules["torch"]
    count = context.memory["mistakes.forwards"] = context.memory.get("mistakes.forwards", 0) + 1
    torch.manual_seed(count)
    before = torch.get_rng_state()
    yield
    if not torch.equal(before, torch.get_rng_state()):
        _planted(context)


_BEFORE_STEP: dict[str, Callable[..., None]] = {"other-rate": _other_rate, "other-gradient": _other_gradient}
_Subscriptions = tuple[tuple[points.Point, Callable[..., Any]], ...]
_AROUND: dict[str, _Subscriptions] = {
    "not-reduced": ((points.DDP_FORWARD, _unreduced_model), (points.COLLECTIVE, _unreduced_gradient)),
    "outside-wrapper": ((points.DDP_MADE, _outside),),
    "other-weights": ((points.DDP_MADE, _other_weights),),
    "same-share": ((points.SAMPLER_MADE, _same_share),),
    "fixed-epoch": ((points.EPOCH_SET, _fixed_epoch),),
    "summed": ((points.BACKWARD, _sum),),
    "same-randomness": ((points.DDP_FORWARD, _same_randomness),),
}
NAMES = frozenset({*_BEFORE_STEP, *_AROUND})
