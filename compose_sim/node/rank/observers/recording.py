"""What do the first steps of a run consist of? `composesim check` has them recorded, to be repeated by one rank (`replay/`)."""

from __future__ import annotations

import os
import traceback
from typing import Any, Callable

from ...shared.import_hooks import after_import
from ..context import Watch, here
from . import training

_RECORDER = "recording.recorder"


def begin(watch: Watch) -> None:
    if watch.mode != "record":
        return
    training.set_hooks(_Hooks())
    after_import("torch", lambda _: _start())


def install() -> None:
    """Nothing yet: whether there is something to record is known when the rank begins."""


def end(watch: Watch) -> None:
    recorder = watch.memory.get(_RECORDER)
    if recorder is not None:
        watch.note("record-end", steps=recorder.steps)


def _start() -> None:
    watch = here()
    if watch is None or not os.environ.get("COMPOSESIM_RECORD"):
        return
    from ..replay.recorder import Recorder

    watch.memory[_RECORDER] = recorder = Recorder(watch)
    recorder.keep_randomness()


def _recorder() -> Any:
    watch = here()
    recorder = watch.memory.get(_RECORDER) if watch is not None else None
    return None if recorder is None or recorder.is_over else recorder


class _Hooks(training.Hooks):
    """All that the recorder is told of, until it has seen enough or failed."""

    def loader_made(self, loader: Any) -> None:
        _tell(lambda recorder: recorder.loaders.created(loader))

    def iterate(self, loader: Any, original: Callable[[Any], Any]) -> Any:
        _tell(lambda recorder: recorder.draws.close())
        iterator = original(loader)
        _tell(lambda recorder: recorder.began(loader, iterator))
        return iterator

    def next_batch(self, iterator: Any, original: Callable[[Any], Any]) -> Any:
        _tell(lambda recorder: recorder.draws.close())
        try:
            batch = original(iterator)
        except StopIteration:
            _tell(lambda recorder: recorder.ended(iterator))
            raise
        _tell(lambda recorder: recorder.got(iterator, batch))
        _tell(lambda recorder: recorder.may_draw())
        return batch

    def optimizer_made(self, optimizer: Any) -> None:
        _tell(lambda recorder: recorder.index_of(optimizer))

    def before_step(self, optimizer: Any) -> None:
        _tell(lambda recorder: recorder.before_step(optimizer))

    def after_step(self, optimizer: Any) -> None:
        recorder = _recorder()
        if recorder is None:
            return
        _tell(lambda recorder: recorder.after_step(optimizer))
        if recorder.is_over and recorder.ends_script and recorder.steps >= recorder.steps_wanted:
            recorder.watch.note("enough", steps=recorder.steps)
            recorder.watch.flush()
            raise SystemExit(0)
        _tell(lambda recorder: recorder.draws.open())

    def computes_again(self) -> None:
        _tell(lambda recorder: recorder.closed_over())


def _tell(what: Callable[[Any], Any]) -> None:
    """Tell the recorder, where there is one; what it does not understand ends the recording, never the script."""
    recorder = _recorder()
    if recorder is None:
        return
    try:
        what(recorder)
    except Exception:  # noqa: BLE001 - this runs inside somebody's training
        recorder.is_over = True
        recorder.watch.note("record-stopped", reason="failed", detail=traceback.format_exc(), steps=recorder.steps)
