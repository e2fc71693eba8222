"""Report when the script joins Horovod, and what it waits for there. Another observer follows optimizers.

Horovod has no hooks: two functions are followed in the module that defines them, before others copy them.
"""

from __future__ import annotations

from types import ModuleType

from ....node.rank import stack_signal
from ....node.rank.context import RankContext
from ....node.rank.torch_hooks import after_import, features, points

INITIALIZED = points.Point("horovod.torch.mpi_ops", "init")
SYNCHRONIZED = points.Point("horovod.torch.mpi_ops", "synchronize")


def install() -> None:
    features.WITHOUT["horovod"] = "the collectives of Horovod are not recorded"
    INITIALIZED.subscribe(_initialize)
    SYNCHRONIZED.subscribe(_synchronize)
    after_import("horovod.torch.optimizer", _after_optimizer)


def _initialize(context: RankContext, call: points.TorchCall) -> points.Steps:
    context.events.emit("init", phase="started", backend="horovod", world_size=None)
    context.flush()
    context.progress.set("busy_library", 1)  # Horovod's own thread exchanges messages every millisecond
    stack_signal.start_helper()
    context.wait_in("horovod.init")
    try:
        yield
    finally:
        context.wait_in("")
    context.events.emit("init", phase="done", backend="horovod", world_size=call.module.size())


def _synchronize(context: RankContext, _: points.TorchCall) -> points.Steps:
    context.wait_in("horovod.synchronize")
    try:
        yield
    finally:
        context.wait_in("")


def _after_optimizer(module: ModuleType) -> None:
    """Mark the steps of Horovod's optimizers as hooked: they call the step of the base class, and torch would hook both."""
    for kind in (value for value in vars(module).values() if isinstance(value, type)):
        step = vars(kind).get("step")
        if step is not None:
            step.hooked = True
