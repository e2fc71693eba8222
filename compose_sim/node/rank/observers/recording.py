"""Record the first steps of a run for `composesim check`, so that one rank can repeat them (`replay/`)."""

from __future__ import annotations

import os
import sys
import traceback
import weakref
from typing import Any, Callable

from ...records.replays import RecordingStopped
from .. import tracked
from ..context import RankContext, here
from ..torch_hooks import after_import, points, updates_by_hand
from .loaders import indices_of
from .optimizers import follow_gradients

_RECORDER, _DESCRIBED = "recording.recorder", "recording.described"


def begin(context: RankContext) -> None:
    if context.mode != "record":
        return
    points.LOADER_ITERATED.subscribe(_iterate)
    points.BATCH_TAKEN.subscribe(_take)
    follow_gradients(_before_step, lambda context: _call(context, lambda recorder: recorder.closed_over()))
    points.AFTER_STEP.subscribe(_after_step)
    points.MODULE_CALLED.subscribe(_module_called)
    points.OPTIMIZER_MADE.subscribe(_made)
    points.BACKWARD.subscribe(_backward)
    after_import("torch", lambda _: _start())


def _start() -> None:
    context = here()
    if context is None or not os.environ.get("COMPOSESIM_RECORD"):
        return
    from ..replay.recorder import Recorder

    context.memory[_RECORDER] = recorder = Recorder(context)
    recorder.keep_randomness()


def _call(context: RankContext, what: Callable[[Any], Any]) -> None:
    """Call the recorder until it has seen enough or has failed; an error ends the recording, never the script."""
    recorder = context.memory.get(_RECORDER)
    if recorder is None or recorder.is_over:
        return
    try:
        what(recorder)
    except Exception:  # noqa: BLE001 - this runs inside the user's training
        recorder.is_over = True
        context.note(RecordingStopped("failed", traceback.format_exc(), recorder.steps))


def end(context: RankContext) -> None:
    _call(context, lambda recorder: recorder.completed())


def _iterate(context: RankContext, call: points.TorchCall) -> points.Steps:
    _call(context, lambda recorder: recorder.waits())
    _call(context, lambda recorder: recorder.begins())
    iterator = yield
    _call(context, lambda recorder: recorder.began(call.owner, iterator))
    _call(context, lambda recorder: recorder.evaluates())


def _take(context: RankContext, call: points.TorchCall) -> points.Steps:
    _call(context, lambda recorder: recorder.rng_usage.close())
    try:
        batch = yield
    finally:
        if isinstance(call.error, StopIteration):
            _call(context, lambda recorder: recorder.ended(call.owner))
            # A loop that fetches ahead still trains on the last batch.
            _call(context, lambda recorder: recorder.may_draw())
    _call(context, lambda recorder: recorder.got(call.owner, batch, indices_of(call.owner)))
    _call(context, lambda recorder: recorder.may_draw())
    _call(context, lambda recorder: recorder.evaluates())


def _made(context: RankContext, call: points.TorchCall) -> None:
    """Forget what models were given before there was an optimizer."""
    if not tracked.optimizers.made and not updates_by_hand.stands_in(call.owner):
        _call(context, lambda recorder: recorder.inputs.clear())


def _module_called(context: RankContext, module: Any, given: Any) -> None:
    if sys.modules["torch"].is_grad_enabled():
        _call(context, lambda recorder: recorder.called(module, given))
    else:
        _call(context, lambda recorder: recorder.evaluates())


def _backward(context: RankContext, call: points.TorchCall) -> points.Steps:
    try:
        yield
    finally:
        _call(context, lambda recorder: recorder.backward_ended())


def _before_step(context: RankContext, optimizer: Any) -> None:
    """Record the step; without a recorder, only describe the models, which other checks need as well."""
    if not os.environ.get("COMPOSESIM_RECORD"):
        _describe_models(context, optimizer)
    _call(context, lambda recorder: recorder.before_step(optimizer))


def _describe_models(context: RankContext, optimizer: Any) -> None:
    from ..replay.wrapped_models import describe, wrapped_models

    known: Any = context.memory.setdefault(_DESCRIBED, weakref.WeakSet())
    if optimizer not in known:
        context.note(describe(optimizer, tracked.optimizers.number(optimizer), wrapped_models())[0])
        known.add(optimizer)


def _after_step(context: RankContext, optimizer: Any, *_: Any) -> None:
    recorder = context.memory.get(_RECORDER)
    if recorder is None or recorder.is_over:
        return
    _call(context, lambda recorder: recorder.after_step(optimizer))
    if recorder.is_over and recorder.ends_script and recorder.steps >= recorder.steps_wanted:
        context.flush()
        raise SystemExit(0)
    _call(context, lambda recorder: recorder.may_draw())
