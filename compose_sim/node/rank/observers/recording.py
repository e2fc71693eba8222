"""Record the first steps of a run for `composesim check`, so that one rank can repeat them (`replay/`)."""

from __future__ import annotations

import os
import traceback
import weakref
from typing import Any, Callable

from ...records.replays import RecordingStopped
from .. import tracked
from ..context import RankContext, here
from ..torch_hooks import after_import
from . import backward, training
from .loaders import indices_of

_RECORDER, _DESCRIBED = "recording.recorder", "recording.described"


def begin(context: RankContext) -> None:
    if context.mode == "record":
        hooks = _Hooks()
        training.set_hooks(hooks)
        backward.after.append(lambda *_: hooks.call(lambda recorder: recorder.backward_ended()))
        after_import("torch", lambda _: _start())


def _start() -> None:
    context = here()
    if context is None or not os.environ.get("COMPOSESIM_RECORD"):
        return
    from ..replay.recorder import Recorder

    context.memory[_RECORDER] = recorder = Recorder(context)
    recorder.keep_randomness()


def _recorder() -> Any:
    context = here()
    recorder = context.memory.get(_RECORDER) if context is not None else None
    return None if recorder is None or recorder.is_over else recorder


def _describe_models(context: RankContext, optimizer: Any) -> None:
    from ..replay.surroundings import describe
    from ..replay.wrapped_models import wrapped_models

    known: Any = context.memory.setdefault(_DESCRIBED, weakref.WeakSet())
    if optimizer not in known:
        context.note(describe(optimizer, tracked.optimizers.number(optimizer), wrapped_models())[0])
        known.add(optimizer)


class _Hooks(training.Hooks):
    """Pass everything on to the recorder, until it has seen enough or has failed."""

    def call(self, what: Callable[[Any], Any]) -> None:
        """Call the recorder, if there is one; an error ends the recording, never the script."""
        recorder = _recorder()
        if recorder is None:
            return
        try:
            what(recorder)
        except Exception:  # noqa: BLE001 - this runs inside somebody's training
            recorder.is_over = True
            recorder.context.note(RecordingStopped("failed", traceback.format_exc(), recorder.steps))

    def iterate(self, loader: Any, original: Callable[[Any], Any]) -> Any:
        self.call(lambda recorder: recorder.rng_usage.close())
        iterator = original(loader)
        self.call(lambda recorder: recorder.began(loader, iterator))
        return iterator

    def next_batch(self, iterator: Any, original: Callable[[Any], Any]) -> Any:
        self.call(lambda recorder: recorder.rng_usage.close())
        try:
            batch = original(iterator)
        except StopIteration:
            self.call(lambda recorder: recorder.ended(iterator))
            self.call(lambda recorder: recorder.may_draw())  # a loop that fetches ahead still trains on the last batch
            raise
        self.call(lambda recorder: recorder.got(iterator, batch, indices_of(iterator)))
        self.call(lambda recorder: recorder.may_draw())
        return batch

    def after_step(self, optimizer: Any) -> None:
        recorder = _recorder()
        if recorder is None:
            return
        self.call(lambda recorder: recorder.after_step(optimizer))
        if recorder.is_over and recorder.ends_script and recorder.steps >= recorder.steps_wanted:
            recorder.context.flush()
            raise SystemExit(0)
        self.call(lambda recorder: recorder.may_draw())

    def before_step(self, optimizer: Any) -> None:
        """Pass it on; without a recorder, only describe the models, which other checks need as well."""
        context = here()
        if context is not None and not os.environ.get("COMPOSESIM_RECORD"):
            context.guard(__name__, _describe_models, optimizer)
        super().before_step(optimizer)

    def computes_again(self) -> None:
        self.call(lambda recorder: recorder.closed_over())
