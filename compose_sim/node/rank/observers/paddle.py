"""Report the steps of a PaddlePaddle training, and when the script joins the group. Nothing is recorded: no check judges Paddle.

Paddle has no hooks: functions and the optimizers' steps are wrapped in the modules from which scripts import them.
"""

from __future__ import annotations

import inspect
import os
import socket
import time
from types import ModuleType
from typing import Any, Callable

from .. import stack_signal
from ..context import here
from ..torch_hooks import after_import, wrap

_PATIENCE_S, _LOOK_S = 30.0, 0.02  # after that Paddle itself reports that nobody is there
_STEPPING = "paddle.stepping"


def install() -> None:
    after_import("paddle.distributed", _after_distributed)
    after_import("paddle.optimizer", _after_optimizer)


def _after_distributed(module: ModuleType) -> None:
    @wrap(module, "init_parallel_env")
    def init_parallel_env(original: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        context = here()
        if context is None:
            return original(*arguments, **options)
        size = int(os.environ.get("PADDLE_TRAINERS_NUM", "1"))
        context.events.emit("init", phase="started", backend=None, world_size=size)
        stack_signal.start_helper()
        _await_first_rank()
        result = original(*arguments, **options)
        backend = module.get_backend() if size > 1 else None
        context.events.emit("init", phase="done", backend=backend and str(backend).lower(), world_size=size)
        return result


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


def _after_optimizer(module: ModuleType) -> None:
    for kind in {value for value in vars(module).values() if inspect.isclass(value)}:
        for name in ("step", "minimize"):  # a subclass defines these, or inherits Optimizer's
            if callable(vars(kind).get(name)):
                wrap(kind, name)(_step)


def _step(original: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    context = here()
    if context is None or context.memory.get(_STEPPING):  # a step that calls other steps counts once
        return original(*arguments, **options)
    context.memory[_STEPPING] = True
    try:
        result = original(*arguments, **options)
    finally:
        context.memory[_STEPPING] = False
    context.count_step()
    return result
