"""What cannot be emulated, and how is a script told? By an error that names it and the line, never by a wrong result."""

from __future__ import annotations

from typing import Any

import torch

from .. import watch


class NotEmulatedError(RuntimeError):
    """Something that needs a real GPU."""


def refuse(what: str) -> NotEmulatedError:
    """The error for something that a CPU cannot do in a GPU's place."""
    place = watch.place(2)
    where = f" ({place[0]}, line {place[1]})" if place else ""
    return NotEmulatedError(
        f"{what} needs a real GPU: composesim emulates CUDA on the CPU here{where}. "
        "Run this script on a machine with an NVIDIA GPU, or leave this part out where "
        f"torch.cuda.get_device_name() is '{_name()}'"
    )


def _name() -> str:
    from .cuda_module import NAME

    return NAME


def _refusing(what: str) -> Any:
    def refused(*arguments: Any, **options: Any) -> Any:
        raise refuse(what)

    return refused


def _refusing_class(name: str, what: str) -> Any:
    return type(name, (), {"__init__": _refusing(what), "__module__": "torch.cuda"})


def install() -> None:
    """Put a refusal in the place of each."""
    cuda: Any = torch.cuda
    for name in ("CUDAGraph", "graph", "MemPool", "CUDAPluggableAllocator"):
        if hasattr(cuda, name):
            setattr(cuda, name, _refusing_class(name, f"torch.cuda.{name}"))
    for name in ("make_graphed_callables", "cudart", "graph_pool_handle", "change_current_allocator", "caching_allocator_alloc",
                 "utilization", "temperature", "power_draw", "clock_rate", "memory_usage", "device_memory_used", "_compile_kernel",
                 "current_blas_handle"):  # fmt: skip
        if hasattr(cuda, name):
            setattr(cuda, name, _refusing(f"torch.cuda.{name}"))
