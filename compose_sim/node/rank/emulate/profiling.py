"""Let torch's profiler record operations on the CPU only."""

from __future__ import annotations

from typing import Any

import torch

from ...shared.import_hooks import wrap


def install() -> None:
    """Ignore CUDA when profiling, as torch does without a GPU.

    Otherwise the profiler would query the driver for the time of each operation, and print a stack for each failure.
    All of torch's profilers use this class, which has no hook.
    """
    kind: Any = torch.autograd.profiler.profile

    @wrap(kind, "__init__")
    def init(original: Any, *arguments: Any, use_cuda: Any = False, use_device: Any = None, **options: Any) -> None:
        device = None if use_cuda or str(use_device).startswith("cuda") else use_device
        original(*arguments, use_device=device, **options)
