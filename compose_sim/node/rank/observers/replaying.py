"""Repeat the recorded steps of all ranks on one rank, in the second run of `composesim check` (`replay/`)."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any, Callable

from ...records.replays import ReplayFailed
from .. import tracked
from ..context import RankContext, here
from ..replay import meshes
from ..torch_hooks import after_import, points, updates_by_hand
from .files import is_the_scripts
from .optimizers import follow_gradients

_REPLAYER = "replaying.replayer"
_CHANGING = os.O_WRONLY | os.O_RDWR


def begin(context: RankContext) -> None:
    if context.mode == "replay" and not context.events.rank:
        points.LOADER_ITERATED.subscribe(_iterate)
        points.LOADER_LENGTH.subscribe(_length)
        follow_gradients(_before_step, _computes_again)
        points.AFTER_STEP.subscribe(_after_step)
        points.MODULE_CALLED.subscribe(_module_called)
        points.OPTIMIZER_MADE.subscribe(_made)
        points.BACKWARD.subscribe(_backward)
        points.AUTOCAST_ENTERED.subscribe(_autocast)
        points.SAVED.subscribe(_end_if_over)
        points.MESSAGE.subscribe(_message)
        sys.addaudithook(_keep_files)
        after_import("torch", lambda _: _start())
        meshes.allow_any_shape()


def _start() -> None:
    context = here()
    if context is None or not os.environ.get("COMPOSESIM_RECORD"):
        return
    from ..replay.replayer import Replayer

    context.memory[_REPLAYER] = replayer = Replayer(context)
    replayer.set_randomness()


def _call(context: RankContext, what: Callable[[Any], Any]) -> Any:
    """Call the replayer, if there is one; an error ends the run, which has no other purpose."""
    replayer = context.memory.get(_REPLAYER)
    if replayer is None:
        return None
    try:
        return what(replayer)
    except Exception:  # noqa: BLE001 - it is recorded
        context.note(ReplayFailed(traceback.format_exc()))
        replayer.end("the replay failed")


def _iterate(context: RankContext, call: points.TorchCall) -> None:
    """Take batches from the record."""
    if context.memory.get(_REPLAYER) is not None:
        torch, loader = sys.modules["torch"], call.owner
        recorded = _call(context, lambda replayer: replayer.passage(loader))
        if recorded is not None:
            # A loader draws this for its workers; the script's next draw must be the same as in the recorded run.
            torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
            call.answer(recorded)


def _length(context: RankContext, call: points.TorchCall) -> None:
    if context.memory.get(_REPLAYER) is None:
        return
    try:
        natural = call.function.original(call.owner)
    except (TypeError, NotImplementedError):
        natural = None
    length = _call(context, lambda replayer: replayer.length(call.owner, natural))
    if length is not None:
        call.answer(length)


def _made(context: RankContext, call: points.TorchCall) -> None:
    """Forget what models were given before there was an optimizer."""
    if not tracked.optimizers.made and not updates_by_hand.stands_in(call.owner):
        _call(context, lambda replayer: replayer.inputs.clear())


def _module_called(context: RankContext, module: Any, given: Any) -> None:
    if sys.modules["torch"].is_grad_enabled():
        _call(context, lambda replayer: replayer.called(module, given))


def _before_step(context: RankContext, optimizer: Any) -> None:
    _call(context, lambda replayer: replayer.before_step(optimizer))


def _computes_again(context: RankContext) -> None:
    _call(context, lambda replayer: replayer.end("the optimizer computes gradients several times a step"))


def _after_step(context: RankContext, optimizer: Any, *_: Any) -> None:
    """Compare the step with the recorded one."""
    _call(context, lambda replayer: replayer.after_step(optimizer))


def _message(context: RankContext, _: points.TorchCall) -> None:
    """End the replay before one rank would wait for another."""
    _call(context, lambda replayer: replayer.end("the script sends messages to other ranks, and there is only one"))


def _keep_files(event: str, arguments: tuple[Any, ...]) -> None:
    is_path = event in ("os.rename", "os.remove", "open") and isinstance(arguments[0], (str, bytes))
    if is_path and (event != "open" or arguments[2] & _CHANGING) and is_the_scripts(os.fsdecode(arguments[0])):
        _end_if_over(here())


def _end_if_over(context: RankContext | None, *_: Any) -> None:
    """End the replay before the script changes a file after its last step: that would overwrite the result of the run."""
    replayer = context.memory.get(_REPLAYER) if context else None
    if replayer is not None and replayer.has_all_steps:
        replayer.end("all recorded steps have been repeated")


def _backward(context: RankContext, call: points.TorchCall) -> None:
    replayer, root = context.memory.get(_REPLAYER), call.value("tensors")
    if replayer is not None and getattr(root, "grad_fn", None) is not None:
        from ..replay.gradients import divisors_of

        replayer.divisors |= divisors_of(root)


def _autocast(context: RankContext, call: points.TorchCall) -> None:
    replayer = context.memory.get(_REPLAYER)
    if replayer is not None and getattr(call.owner, "_enabled", True):
        replayer.low = True
