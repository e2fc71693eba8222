"""When does the script join Horovod, and what does it wait for there? Told as for torch; its steps are seen as any optimizer's.

Horovod offers no hooks: two of its functions are wrapped, in the module that defines them and before others copy them.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any, Callable

from ...shared.import_hooks import after_import
from .. import stack_signal
from ..context import here


def install() -> None:
    after_import("horovod.torch.mpi_ops", _after_operations)
    after_import("horovod.torch.optimizer", _after_optimizer)


def _after_operations(module: ModuleType) -> None:
    initialise: Callable[..., Any] = module.init
    synchronize: Callable[..., Any] = module.synchronize

    @functools.wraps(initialise)
    def init(*arguments: Any, **options: Any) -> Any:
        watch = here()
        if watch is None:
            return initialise(*arguments, **options)
        watch.events.emit("init", phase="started", backend="horovod", world_size=None)
        watch.flush()
        watch.progress.set("busy_library", 1)  # Horovod's own thread asks the others each millisecond what they have
        stack_signal.start_helper()
        watch.wait_in("horovod.init")
        try:
            result = initialise(*arguments, **options)
        finally:
            watch.wait_in("")
        watch.events.emit("init", phase="done", backend="horovod", world_size=module.size())
        return result

    @functools.wraps(synchronize)
    def wait(handle: Any) -> Any:
        watch = here()
        if watch is None:
            return synchronize(handle)
        watch.wait_in("horovod.synchronize")
        try:
            return synchronize(handle)
        finally:
            watch.wait_in("")

    module.init, module.synchronize = init, wait  # type: ignore[attr-defined]


def _after_optimizer(module: ModuleType) -> None:
    """Horovod's optimizers step by the step of the class that they are made from: torch would hook both, and we count two."""
    for kind in (value for value in vars(module).values() if isinstance(value, type)):
        step = vars(kind).get("step")
        if step is not None:
            step.hooked = True
