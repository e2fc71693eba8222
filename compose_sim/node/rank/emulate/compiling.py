"""Run torch.compile eagerly, and print that once.

Inductor would generate Triton kernels for CUDA, or C++ for the CPU, which rounds differently. A compiled module keeps
the attribute `_orig_mod`, which scripts and checkpoints use.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import torch

_printed = False


def compile(model: Any = None, **options: Any) -> Any:
    """Replace `torch.compile`, as a call and as a decorator."""
    if model is None:
        return compile
    _print_once()
    if isinstance(model, torch.nn.Module):
        return importlib.import_module("torch._dynamo").disable(model)
    return model


def _print_once() -> None:
    global _printed
    if not _printed and os.environ.get("RANK", "0") == "0":
        print(
            "composesim: torch.compile runs this model eagerly, because CUDA is emulated on the CPU",
            file=sys.stderr,
            flush=True,
        )
    _printed = True


def install() -> None:
    """Replace torch.compile. A backend could not do this, because each call may name another backend."""
    library: Any = torch
    library.compile = compile
