"""Does one rank compute what the ranks of a recorded run did? In the second run of `composesim check` it is given all that they had."""

from __future__ import annotations

import functools
import os
import sys
import traceback
from types import ModuleType
from typing import Any, Callable

from ...shared.import_hooks import after_import
from ..context import Watch, here
from . import training

_REPLAYER = "replaying.replayer"


def install() -> None:
    """Nothing yet: whether there is something to replay is known when the rank begins."""


def begin(watch: Watch) -> None:
    if watch.mode != "replay" or watch.events.rank:
        return
    training.set_hooks(_Hooks())
    after_import("torch.amp.autocast_mode", _notice_autocast)
    after_import("torch", lambda _: _start())


def _start() -> None:
    watch = here()
    if watch is None or not os.environ.get("COMPOSESIM_RECORD"):
        return
    from ..replay.replayer import Replayer

    watch.memory[_REPLAYER] = replayer = Replayer(watch)
    replayer.set_randomness()


def _replayer() -> Any:
    watch = here()
    return watch.memory.get(_REPLAYER) if watch is not None else None


class _Hooks(training.Hooks):
    """Batches come from the record, steps are compared with it."""

    def loader_made(self, loader: Any) -> None:
        _tell(lambda replayer: replayer.loaders.created(loader))

    def iterate(self, loader: Any, original: Callable[[Any], Any]) -> Any:
        replayer = _replayer()
        if replayer is None:
            return original(loader)
        torch = sys.modules["torch"]
        # As a loader does for its workers: what the script draws next must be what it drew in the recorded run.
        torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        return _tell(lambda replayer: replayer.passage(loader))

    def length(self, loader: Any, original: Callable[[Any], int]) -> int:
        if _replayer() is None:
            return original(loader)
        try:
            natural = original(loader)
        except (TypeError, NotImplementedError):
            natural = None
        length = _tell(lambda replayer: replayer.length(loader, natural))
        return original(loader) if length is None else length

    def optimizer_made(self, optimizer: Any) -> None:
        _tell(lambda replayer: replayer.index_of(optimizer))

    def before_step(self, optimizer: Any) -> None:
        _tell(lambda replayer: replayer.before_step(optimizer))

    def after_step(self, optimizer: Any) -> None:
        _tell(lambda replayer: replayer.after_step(optimizer))

    def computes_again(self) -> None:
        _tell(lambda replayer: replayer.end("the optimizer computes gradients several times a step"))

    def autograd(self, module: ModuleType) -> None:
        backward = module.backward

        @functools.wraps(backward)
        def noticing(tensors: Any, *arguments: Any, **options: Any) -> Any:
            replayer = _replayer()
            if replayer is not None and getattr(tensors, "grad_fn", None) is not None:
                from ..replay.replayer import divisors_of

                replayer.divisors |= divisors_of(tensors)
            return backward(tensors, *arguments, **options)

        module.backward = noticing  # type: ignore[attr-defined] # what Tensor.backward calls


def _notice_autocast(module: ModuleType) -> None:
    enter = module.autocast.__enter__

    @functools.wraps(enter)
    def __enter__(self: Any) -> Any:  # noqa: N807 - it becomes that method
        replayer = _replayer()
        if replayer is not None and getattr(self, "_enabled", True):
            replayer.low = True
        return enter(self)

    module.autocast.__enter__ = __enter__


def _tell(what: Callable[[Any], Any]) -> Any:
    """Tell the replayer. Without it this run is good for nothing: what it does not understand ends the run."""
    replayer = _replayer()
    if replayer is None:
        return None
    try:
        return what(replayer)
    except StopIteration:
        raise
    except Exception:  # noqa: BLE001 - whatever it was, it is told
        replayer.watch.note("replay-failed", traceback=traceback.format_exc())
        replayer.end("the replay failed")
