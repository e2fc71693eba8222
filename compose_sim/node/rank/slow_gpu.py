"""Slow down the GPU of a rank: after each optimizer step, it is busy for a multiple of the time that the step took.

The thread percentage of MPS cannot do that: it holds for processes that have not used the GPU yet.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..shared import emulation

_CYCLES = 1_000_000  # under a millisecond: how many there are in one is measured


def begin(note: Path, factor: float) -> None:
    """Make each optimizer step take `factor` times as long, until the note is removed; without a GPU, the rank sleeps."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return
    from torch.optim.optimizer import register_optimizer_step_post_hook

    is_real = torch.cuda.is_initialized() and not emulation.is_on()
    wait = _spinning(torch.cuda, factor - 1) if is_real else _sleeping(factor - 1)

    def after_step(*_: Any) -> None:
        if note.exists():
            wait()
        else:
            handle.remove()

    handle = register_optimizer_step_post_hook(after_step)


def _sleeping(share: float) -> Callable[[], None]:
    began = time.monotonic()

    def wait() -> None:
        nonlocal began
        time.sleep((time.monotonic() - began) * share)
        began = time.monotonic()

    return wait


def _spinning(cuda: Any, share: float) -> Callable[[], None]:
    """Return what occupies the current stream. The GPU's own clock counts, because the host runs ahead of it."""
    cycles_per_ms = _CYCLES / _milliseconds_of(cuda, _CYCLES)
    began = _time(cuda)
    steps: deque[tuple[Any, Any]] = deque()  # begin and end of those that the GPU may not have finished
    took = 0.0  # milliseconds

    def wait() -> None:
        nonlocal began, took
        steps.append((began, _time(cuda)))
        while steps and steps[0][1].query():
            took = steps[0][0].elapsed_time(steps.popleft()[1])
        cuda._sleep(round(took * share * cycles_per_ms))
        began = _time(cuda)

    return wait


def _milliseconds_of(cuda: Any, cycles: int) -> float:
    began = _time(cuda)
    cuda._sleep(cycles)
    ended = _time(cuda)
    ended.synchronize()
    return float(began.elapsed_time(ended))


def _time(cuda: Any) -> Any:
    event = cuda.Event(enable_timing=True)
    event.record()
    return event
