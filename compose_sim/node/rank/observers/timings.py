"""Time backward passes, up to the last gradient: what follows is the part of DDP's all-reduce that computing does not hide.

The observers of loaders, models and optimizers time what they wrap, and `RankContext.wait_in` times waits (`rank/step_times.py`).
"""

from __future__ import annotations

import math
import sys
import time
from typing import Any

from ..context import RankContext
from ..torch_hooks import points
from .models import PENDING


def install() -> None:
    points.BACKWARD.subscribe(_backward)


def end(context: RankContext) -> None:
    context.times.write()


def _backward(context: RankContext, call: points.TorchCall) -> points.Steps:
    times, began = context.times, time.monotonic()
    if context.memory.get(PENDING):
        times.waits_not_before = math.inf
        context.progress.set("waiting_since", 0)
        tensors = call.value("tensors")
        root = tensors[0] if isinstance(tensors, (list, tuple)) and tensors else tensors
        _time_last_gradient(context, getattr(root, "grad_fn", None))
    try:
        yield
    finally:
        computed, times.waits_not_before = times.waits_not_before, 0.0
        times.work("backward", began, computed if began < computed < math.inf else 0.0)


def _time_last_gradient(context: RankContext, node: Any) -> None:
    """Note when the backward pass that begins at this node has computed its last gradient."""
    if node is None:
        return
    engine = sys.modules["torch"].autograd.Variable._execution_engine

    def computed() -> None:
        context.times.waits_not_before = now = time.monotonic()
        context.progress.set("waiting_since", context.times.unix_micros(now))

    def begin(_: Any) -> None:
        handle.remove()
        # Callbacks run in this order, once all gradients are complete; that of DDP, which waits for other ranks, is queued later.
        engine.queue_callback(computed)

    handle = node.register_prehook(begin)  # a hook of the tensor would take 10 µs more
