"""Report when the script joins Horovod, and what it waits for there. optimizers.py observes the steps, as for any optimizer.

Horovod has no hooks: two functions are wrapped in the module that defines them, before others copy them.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Callable

from .. import stack_signal
from ..context import here
from ..torch_hooks import after_import, wrap


def install() -> None:
    after_import("horovod.torch.mpi_ops", _after_operations)
    after_import("horovod.torch.optimizer", _after_optimizer)


def _after_operations(module: ModuleType) -> None:
    @wrap(module, "init")
    def init(original: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        context = here()
        if context is None:
            return original(*arguments, **options)
        context.events.emit("init", phase="started", backend="horovod", world_size=None)
        context.flush()
        context.progress.set("busy_library", 1)  # Horovod's own thread exchanges messages every millisecond
        stack_signal.start_helper()
        context.wait_in("horovod.init")
        try:
            result = original(*arguments, **options)
        finally:
            context.wait_in("")
        context.events.emit("init", phase="done", backend="horovod", world_size=module.size())
        return result

    @wrap(module, "synchronize")
    def synchronize(original: Callable[..., Any], handle: Any) -> Any:
        context = here()
        if context is None:
            return original(handle)
        context.wait_in("horovod.synchronize")
        try:
            return original(handle)
        finally:
            context.wait_in("")


def _after_optimizer(module: ModuleType) -> None:
    """Mark the steps of Horovod's optimizers as hooked: they call the step of the base class, and torch would hook both."""
    for kind in (value for value in vars(module).values() if isinstance(value, type)):
        step = vars(kind).get("step")
        if step is not None:
            step.hooked = True
