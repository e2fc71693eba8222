"""Raise an error that names the feature and the line if a script uses something that cannot be emulated, or run it another way."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import re
import sys
from typing import Any

import torch

from ...shared.import_hooks import replace, wrap
from .. import context
from . import cuda_module


class NotEmulatedError(RuntimeError):
    """The script uses something that needs a real GPU."""


def refuse(what: str) -> NotEmulatedError:
    """Return the error for something that a CPU cannot do."""
    place = context.place(2)
    where = f" ({place[0]}, line {place[1]})" if place else ""
    return NotEmulatedError(
        f"{what} needs a real GPU: composesim emulates CUDA on the CPU here{where}. "
        "Run this script on a machine with an NVIDIA GPU, or skip this part if "
        f"torch.cuda.get_device_name() is '{cuda_module.NAME}'"
    )


def _refusing(what: str) -> Any:
    def refused(*arguments: Any, **options: Any) -> Any:
        raise refuse(what)

    return refused


def _refusing_class(name: str, what: str) -> Any:
    return type(name, (), {"__init__": _refusing(what), "__module__": "torch.cuda"})


def explain(error: NotImplementedError) -> NotImplementedError:
    """Return a NotEmulatedOperation if the operation exists only for CUDA, else the same error."""
    found = re.match(r"Could not run '([^']+)' with arguments from the '(?:CPU|CUDA)' backend", str(error))
    return NotEmulatedOperation(str(refuse(f"the operation {found[1]}"))) if found else error


class NotEmulatedOperation(NotEmulatedError, NotImplementedError):
    """The operation has no implementation for the CPU."""


def _refuse_extensions(module: Any) -> None:
    """Patch torch.utils.cpp_extension: C++ extensions are built, CUDA extensions are not."""

    @wrap(module, "load")
    def load(original: Any, name: Any, sources: Any, *arguments: Any, **options: Any) -> Any:
        files = [sources] if isinstance(sources, str) else list(sources)
        if any(str(file).endswith((".cu", ".cuh")) for file in files):
            raise refuse(f"the CUDA extension '{name}'")
        return original(name, sources, *arguments, **options)

    @wrap(module, "load_inline")
    def load_inline(
        original: Any, name: Any, cpp_sources: Any, cuda_sources: Any = None, *arguments: Any, **options: Any
    ) -> Any:
        if cuda_sources:
            raise refuse(f"the CUDA extension '{name}'")
        return original(name, cpp_sources, cuda_sources, *arguments, **options)


def _refuse_triton(module: Any) -> None:
    def run(self: Any, *arguments: Any, **options: Any) -> Any:
        raise refuse(f"the Triton kernel '{getattr(self, '__name__', '?')}'")

    module.JITFunction.run = run


def _refuse_symmetric_memory(module: Any) -> None:
    names = ("empty", "rendezvous", "enable_symm_mem_for_group")
    replace(dict.fromkeys(names, _refusing("symmetric memory (NVSHMEM)")), module)


# Functions that patch a module once it is imported.
IMPORTED = {
    "torch.utils.cpp_extension": _refuse_extensions,
    "triton.runtime.jit": _refuse_triton,
    "torch.distributed._symmetric_memory": _refuse_symmetric_memory,
}


_OF_ONE_PROCESS = ("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "init_rank", "unique_id")
_OF_STORAGE = ("gds_register_buffer", "gds_deregister_buffer", "GdsFile")


def refuse_the_rest() -> None:
    """Replace the functions and classes of torch that cannot be emulated."""
    cuda: Any = torch.cuda
    c: Any = torch._C
    for name in ("_broadcast_coalesced", "_broadcast", "_scatter", "_gather"):
        setattr(c, name, _refusing("moving tensors between the GPUs of one process (nn.DataParallel)"))
    cuda.jiterator._create_jit_fn = cuda.jiterator._create_multi_output_jit_fn = _refusing("torch.cuda.jiterator")
    kinds = ("CUDAGraph", "graph", "MemPool", "CUDAPluggableAllocator")
    replace({name: _refusing_class(name, f"torch.cuda.{name}") for name in kinds}, cuda)
    functions = ("make_graphed_callables", "cudart", "graph_pool_handle", "change_current_allocator", "caching_allocator_alloc",
                 "_compile_kernel", "current_blas_handle", "current_solver_handle", "get_stream_from_external",
                 "use_mem_pool")  # fmt: skip
    replace({name: _refusing(f"torch.cuda.{name}") for name in functions}, cuda, cuda.memory)
    for module, names in ((cuda.nccl, _OF_ONE_PROCESS), (getattr(cuda, "gds", None), _OF_STORAGE)):
        if module is not None:
            replace({name: _refusing(f"{module.__name__}.{name}") for name in names}, module)


def compile(model: Any = None, **options: Any) -> Any:
    """Replace `torch.compile`, as a call and as a decorator."""
    if model is None:
        return compile
    _print_once()
    if isinstance(model, torch.nn.Module):
        return importlib.import_module("torch._dynamo").disable(model)
    return model


@functools.cache
def _print_once() -> None:
    if os.environ.get("RANK", "0") == "0":
        text = "composesim: torch.compile runs this model eagerly, because CUDA is emulated on the CPU"
        print(text, file=sys.stderr, flush=True)


def compile_eagerly() -> None:
    """Replace torch.compile. A backend could not do this, because each call may name another backend.

    Inductor would generate Triton kernels for CUDA, or C++ for the CPU, which rounds differently. A compiled module keeps the attribute
    `_orig_mod`, which scripts and checkpoints use.
    """
    library: Any = torch
    library.compile = compile


def profile_the_cpu() -> None:
    """Ignore CUDA when profiling, as torch does without a GPU.

    Otherwise the profiler would query the driver for the time of each operation, and print a stack for each failure.
    All of torch's profilers use this class, which has no hook.
    """
    kind: Any = torch.autograd.profiler.profile

    @wrap(kind, "__init__")
    def init(original: Any, *arguments: Any, use_device: Any = None, **options: Any) -> None:
        device = None if str(use_device).startswith("cuda") else use_device
        if options.get("use_cuda") and "use_cuda" in inspect.signature(original).parameters:  # newer versions refuse it
            options["use_cuda"] = False
        original(*arguments, use_device=device, **options)
