"""What does torch.compile do for an emulated device? Nothing but what scripts can see of it: the model runs eagerly, and that is said.

Inductor would write Triton kernels for CUDA, or C++ for the CPU, which rounds differently. A compiled module keeps the name
`_orig_mod` that scripts and checkpoints know.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import torch

_said = False


def compile(model: Any = None, **options: Any) -> Any:
    """`torch.compile`, as a call and as a decorator."""
    if model is None:
        return compile
    _say()
    if isinstance(model, torch.nn.Module):
        return importlib.import_module("torch._dynamo").disable(model)
    return model


def _say() -> None:
    global _said
    if not _said and os.environ.get("RANK", "0") == "0":
        print(
            "composesim: CUDA is emulated on the CPU: torch.compile runs this model eagerly",
            file=sys.stderr,
            flush=True,
        )
    _said = True


def install() -> None:
    """Put it in the place of torch.compile, whose backends no hook can change: each names its own, or takes the default."""
    library: Any = torch
    library.compile = compile
