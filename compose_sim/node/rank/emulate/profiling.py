"""What does torch's profiler see of emulated devices? The operations on the CPU, which is what there is."""

from __future__ import annotations

import functools
from typing import Any

import torch


def install() -> None:
    """
    Leave CUDA out of what is profiled, as torch does where it has no GPU.

    It would ask the driver for the time of each operation, and print a stack for each that it cannot have. All of torch's
    profilers are made of this class, and none of them has a hook.
    """
    kind: Any = torch.autograd.profiler.profile
    real = kind.__init__

    @functools.wraps(real)
    def init(self: Any, *arguments: Any, use_cuda: Any = False, use_device: Any = None, **options: Any) -> None:
        device = None if use_cuda or str(use_device).startswith("cuda") else use_device
        real(self, *arguments, use_device=device, **options)

    kind.__init__ = init
