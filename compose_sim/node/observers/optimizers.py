"""How far is the training? Optimizer steps, counted, and told as events a few times a second."""

from __future__ import annotations

import sys
import time
from types import ModuleType
from typing import Any

from ..imports import after_import
from ..watch import Watch, here

_SECONDS_BETWEEN_STEPS = 0.2
_NEXT_AT, _TOLD = "optimizers.next_at", "optimizers.told"

_step_hook: Any = None


def install() -> None:
    after_import("torch.optim.optimizer", _after_optimizer)
    after_import("torch._dynamo", _after_dynamo)


def end(watch: Watch) -> None:
    if watch.steps > watch.memory.get(_TOLD, 0):
        _tell_step(watch)


def _after_optimizer(module: ModuleType) -> None:
    global _step_hook
    _step_hook = module.register_optimizer_step_post_hook(_stepped)


def _after_dynamo(_: ModuleType) -> None:
    """Steps can be compiled from now on: have the hook called at every run of the compiled code, not seen once by the compiler."""
    global _step_hook
    hook = sys.modules["torch"].compiler.disable(_stepped)
    if _step_hook is not None:
        _step_hook.remove()
    _step_hook = sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook(hook)


def _stepped(*_: Any) -> None:
    watch = here()
    if watch is None:
        return
    watch.steps += 1
    watch.pulse.advance("steps")
    now = time.monotonic()
    if now >= watch.memory.get(_NEXT_AT, 0.0):
        watch.memory[_NEXT_AT] = now + _SECONDS_BETWEEN_STEPS
        _tell_step(watch)


def _tell_step(watch: Watch) -> None:
    watch.memory[_TOLD] = watch.steps
    watch.events.emit("step", step=watch.steps)
