"""Report the steps of a PaddlePaddle training, and when the script joins the group. Nothing is recorded: no check judges Paddle.

Paddle has no hooks: functions and the optimizers' steps are followed in the modules from which scripts import them.
"""

from __future__ import annotations

import os
import socket
import time

from ....node.rank import stack_signal
from ....node.rank.context import RankContext
from ....node.rank.torch_hooks import features, points

INITIALIZED = points.Point("paddle.distributed", "init_parallel_env")
STEP = points.Point("paddle.optimizer", "*.step", "*.minimize")

_PATIENCE_S, _LOOK_S = 30.0, 0.02  # after that Paddle itself reports that no node has come
_STEPPING = "paddle.stepping"


def install() -> None:
    features.WITHOUT["paddle"] = "the collectives of Paddle are not recorded"
    INITIALIZED.subscribe(_initialize)
    STEP.subscribe(_step)


def _initialize(context: RankContext, call: points.TorchCall) -> points.Steps:
    size = int(os.environ.get("PADDLE_TRAINERS_NUM", "1"))
    context.events.emit("init", phase="started", backend=None, world_size=size)
    stack_signal.start_helper()
    _await_first_rank()
    yield
    backend = call.module.get_backend() if size > 1 else None
    context.events.emit("init", phase="done", backend=backend and str(backend).lower(), world_size=size)


def _await_first_rank() -> None:
    """Wait until the first rank serves the store: Paddle would retry only after 3 s."""
    host, _, port = os.environ.get("PADDLE_MASTER", "").partition(":")
    if os.environ.get("PADDLE_TRAINER_ID") in (None, "0") or "MASTER_ADDR" in os.environ or not port.isdecimal():
        return
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until:
        try:
            socket.create_connection((host, int(port)), timeout=_PATIENCE_S).close()
        except OSError:
            time.sleep(_LOOK_S)
        else:
            return


def _step(context: RankContext, _: points.TorchCall) -> points.Steps:
    if context.memory.get(_STEPPING):  # a step that calls other steps counts once
        return
    context.memory[_STEPPING] = True
    try:
        yield
    finally:
        context.memory[_STEPPING] = False
    context.count_step()
