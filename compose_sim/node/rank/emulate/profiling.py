"""Let torch's profiler record operations on the CPU only."""

from __future__ import annotations

import functools
from typing import Any

import torch


def install() -> None:
    """Ignore CUDA when profiling, as torch does without a GPU.

    Otherwise the profiler would query the driver for the time of each operation, and print a stack for each failure.
    All of torch's profilers use this class, which has no hook.
    """
    kind: Any = torch.autograd.profiler.profile
    real = kind.__init__

    @functools.wraps(real)
    def init(self: Any, *arguments: Any, use_cuda: Any = False, use_device: Any = None, **options: Any) -> None:
        device = None if use_cuda or str(use_device).startswith("cuda") else use_device
        real(self, *arguments, use_device=device, **options)

    kind.__init__ = init
