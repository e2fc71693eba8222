"""How far is a PaddlePaddle training, and when does the script join its group? Told as for torch; nothing is noted for checks.

Paddle offers no hooks: two functions and the optimizers' steps are wrapped, in the modules that scripts find them in.
"""

from __future__ import annotations

import functools
import inspect
import os
import socket
import time
from types import ModuleType
from typing import Any, Callable

from ...shared.import_hooks import after_import
from .. import stack_signal
from ..context import Watch, here

_SECONDS_BETWEEN_STEPS = 0.2
_PATIENCE_S, _LOOK_S = 30.0, 0.02  # after that it is Paddle's to say that nobody is there
_STEPPING, _TOLD, _NEXT_AT = (f"paddle.{name}" for name in ("stepping", "told", "next_at"))


def install() -> None:
    after_import("paddle.distributed", _after_distributed)
    after_import("paddle.optimizer", _after_optimizer)


def end(watch: Watch) -> None:
    if watch.steps > watch.memory.get(_TOLD, watch.steps):
        _tell_step(watch)


def _after_distributed(module: ModuleType) -> None:
    original: Callable[..., Any] = module.init_parallel_env

    @functools.wraps(original)
    def init_parallel_env(*arguments: Any, **options: Any) -> Any:
        watch = here()
        if watch is None:
            return original(*arguments, **options)
        size = int(os.environ.get("PADDLE_TRAINERS_NUM", "1"))
        watch.events.emit("init", phase="started", backend=None, world_size=size)
        stack_signal.start_helper()
        _await_first_rank()
        result = original(*arguments, **options)
        backend = module.get_backend() if size > 1 else None
        watch.events.emit("init", phase="done", backend=backend and str(backend).lower(), world_size=size)
        return result

    module.init_parallel_env = init_parallel_env  # type: ignore[attr-defined]


def _await_first_rank() -> None:
    """Wait until the first rank serves its store: Paddle itself would look once, and then not for 3 s."""
    host, _, port = os.environ.get("PADDLE_MASTER", "").partition(":")
    if os.environ.get("PADDLE_TRAINER_ID") in (None, "0") or "MASTER_ADDR" in os.environ or not port.isdigit():
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
        for name in ("step", "minimize"):  # a subclass brings its own, or takes Optimizer's
            if callable(vars(kind).get(name)):
                setattr(kind, name, _counted(vars(kind)[name]))


def _counted(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def step(*arguments: Any, **options: Any) -> Any:
        watch = here()
        if watch is None or watch.memory.get(_STEPPING):  # a step that is made of others counts once
            return original(*arguments, **options)
        watch.memory[_STEPPING] = True
        try:
            result = original(*arguments, **options)
        finally:
            watch.memory[_STEPPING] = False
        _count(watch)
        return result

    return step


def _count(watch: Watch) -> None:
    watch.steps += 1
    watch.progress.advance("steps")
    now = time.monotonic()
    watch.memory.setdefault(_TOLD, 0)
    if now >= watch.memory.get(_NEXT_AT, 0.0):
        watch.memory[_NEXT_AT] = now + _SECONDS_BETWEEN_STEPS
        _tell_step(watch)


def _tell_step(watch: Watch) -> None:
    watch.memory[_TOLD] = watch.steps
    watch.events.emit("step", step=watch.steps)
