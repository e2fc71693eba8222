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
from .torch_hooks import points

_CYCLES = 1_000_000  # under a millisecond: how many there are in one is measured
_fault: tuple[Path, Callable[[], None]] | None = None  # exists until it is healed; what to do after a step


def install() -> None:
    """
    Follow all steps from the start of the rank.

    A fault begins and ends at any moment, also while torch iterates over its hooks, so it cannot add or remove one.
    """
    points.AFTER_STEP.subscribe(_after_step)


def begin(note: Path, factor: float) -> None:
    """Make each optimizer step take `factor` times as long, until the note is removed; without a GPU, the rank sleeps."""
    global _fault
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        is_real = torch.cuda.is_initialized() and not emulation.is_on()
        _fault = note, _spinning(torch.cuda, factor - 1) if is_real else _sleeping(factor - 1)


def _after_step(*_: Any) -> None:
    global _fault
    if _fault is None:
        return
    note, wait = _fault
    if note.exists():
        wait()
    else:
        _fault = None


def _sleeping(share: float) -> Callable[[], None]:
    began = time.monotonic()

    def wait() -> None:
        nonlocal began
        time.sleep((time.monotonic() - began) * share)
        began = time.monotonic()

    return wait


def _spinning(cuda: Any, share: float) -> Callable[[], None]:
    """Return what occupies the current stream. The GPU's own clock counts, because the host runs ahead of it."""
    with cuda.stream(cuda.Stream()):  # the rank's own kernels would be timed as well
        cycles_per_ms = _CYCLES / min(_milliseconds_of(cuda, _CYCLES) for _ in range(5))  # others may use the GPU too
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
