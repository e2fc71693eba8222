"""Raise the errors of CUDA that an injected GPU fault causes, in CUDA's own words. The device itself is not touched."""

from __future__ import annotations

import sys
from typing import Any

_ASYNCHRONOUS = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect."
    "\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1"
    "\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)
_TEXTS = {
    "xid": "an illegal memory access was encountered",
    "ecc": "uncorrectable ECC error encountered",
    "lost": "unknown error",
}
_WANTED = "2.00 GiB"


def error(kind: str) -> Exception:
    """Return the exception that torch raises for this kind of fault; a RuntimeError if torch is not loaded."""
    torch: Any = sys.modules.get("torch")
    if kind == "oom":
        make = getattr(torch, "OutOfMemoryError", RuntimeError)
        return make(f"CUDA out of memory. Tried to allocate {_WANTED}. {_memory(torch)}")
    make = getattr(torch, "AcceleratorError", RuntimeError)  # since torch 2.8
    return make(f"CUDA error: {_TEXTS[kind]}{_ASYNCHRONOUS}")


def _memory(torch: Any) -> str:
    if torch is None or not torch.cuda.is_initialized():
        return "GPU 0 has no free memory."
    index = torch.cuda.current_device()
    total = torch.cuda.get_device_properties(index).total_memory / 2**30
    return f"GPU {index} has a total capacity of {total:.2f} GiB of which 0 bytes is free."
