"""Repeat the recorded steps of all ranks on one rank, in the second run of `composesim check` (`replay/`)."""

from __future__ import annotations

import os
import sys
import traceback
from types import ModuleType
from typing import Any, Callable

from ...records.replays import ReplayFailed
from ..context import RankContext, here
from ..replay import meshes
from ..torch_hooks import after_import, wrap
from . import training

_REPLAYER = "replaying.replayer"


def begin(context: RankContext) -> None:
    if context.mode == "replay" and not context.events.rank:
        training.set_hooks(_Hooks())
        after_import("torch.amp.autocast_mode", _notice_autocast)
        after_import("torch", lambda _: _start())
        meshes.allow_any_shape()


def _start() -> None:
    context = here()
    if context is None or not os.environ.get("COMPOSESIM_RECORD"):
        return
    from ..replay.replayer import Replayer

    context.memory[_REPLAYER] = replayer = Replayer(context)
    replayer.set_randomness()


def _replayer() -> Any:
    context = here()
    return context.memory.get(_REPLAYER) if context is not None else None


class _Hooks(training.Hooks):
    """Take batches from the record, and compare steps with it."""

    def call(self, what: Callable[[Any], Any]) -> Any:
        """Call the replayer, if there is one; an error ends the run, which has no other purpose."""
        replayer = _replayer()
        if replayer is None:
            return None
        try:
            return what(replayer)
        except StopIteration:
            raise
        except Exception:  # noqa: BLE001 - it is recorded, whatever it is
            replayer.context.note(ReplayFailed(traceback.format_exc()))
            replayer.end("the replay failed")

    def iterate(self, loader: Any, original: Callable[[Any], Any]) -> Any:
        replayer = _replayer()
        if replayer is None:
            return original(loader)
        torch = sys.modules["torch"]
        # A loader draws this for its workers; the script's next draw must be the same as in the recorded run.
        torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        return self.call(lambda replayer: replayer.passage(loader))

    def length(self, loader: Any, original: Callable[[Any], int]) -> int:
        if _replayer() is None:
            return original(loader)
        try:
            natural = original(loader)
        except (TypeError, NotImplementedError):
            natural = None
        length = self.call(lambda replayer: replayer.length(loader, natural))
        return original(loader) if length is None else length

    def after_step(self, optimizer: Any) -> None:
        self.call(lambda replayer: replayer.after_step(optimizer))

    def computes_again(self) -> None:
        self.call(lambda replayer: replayer.end("the optimizer computes gradients several times a step"))

    def autograd(self, module: ModuleType) -> None:
        @wrap(module, "backward")  # what Tensor.backward calls
        def backward(original: Callable[..., Any], tensors: Any, *arguments: Any, **options: Any) -> Any:
            replayer = _replayer()
            if replayer is not None and getattr(tensors, "grad_fn", None) is not None:
                from ..replay.divisors import divisors_of

                replayer.divisors |= divisors_of(tensors)
            return original(tensors, *arguments, **options)


def _notice_autocast(module: ModuleType) -> None:
    @wrap(module.autocast, "__enter__")
    def enter(original: Callable[..., Any], self: Any) -> Any:
        replayer = _replayer()
        if replayer is not None and getattr(self, "_enabled", True):
            replayer.low = True
        return original(self)
