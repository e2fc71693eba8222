"""Let DTensor, FSDP and tensor parallelism use emulated devices: enable the mode in torch's code that names a mesh's device."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .tensors import resumed

_RANDOM = "torch.distributed.tensor._random"
_NAMED = (_RANDOM, "torch.distributed.tensor._dispatch", "torch.distributed.tensor")


def emulate_schema(module: Any) -> None:
    """Patch torch.distributed.tensor._op_schema once it is imported.

    Below a call that the mode handles, DTensor makes a tensor on "the mesh's device" to find out the shape of a result.
    """
    name = "_rebuild_tensor_from_dtensor_meta"
    if hasattr(module, name):
        setattr(module, name, resumed(getattr(module, name)))


def emulate_dispatch(module: Any) -> None:
    """Patch torch.distributed.tensor._dispatch once it is imported: comparing two DTensors also makes a tensor on the mesh's device."""
    dispatcher, name = module.OpDispatcher, "_dispatch_fast_path_python_tail"
    if hasattr(dispatcher, name):
        setattr(dispatcher, name, resumed(getattr(dispatcher, name)))
    draw_as_on_the_cpu(sys.modules.get(_RANDOM))


def emulate_loss(module: Any) -> None:
    """Patch torch.distributed.tensor.parallel.loss once it is imported.

    Below a cross-entropy of sharded logits, the target is moved to the mesh's device.
    """
    handlers = module.customized_loss_ops
    handlers.update({operation: resumed(handler) for operation, handler in handlers.items()})


def shard_attention(module: Any) -> None:
    """Patch torch.distributed.tensor once it is imported: let attention be sharded over batches and heads.

    DTensor knows how to shard CUDA's attention kernels, but not that of the CPU.
    """
    kernels = torch.ops.aten
    if not hasattr(kernels, "_scaled_dot_product_flash_attention_for_cpu"):
        return
    experimental: Any = importlib.import_module("torch.distributed.tensor.experimental")
    shard: Any = experimental.register_sharding

    def alike(outputs: int, inputs: int, others: int) -> Any:
        """Return the shardings in which all tensors are placed alike."""
        places = (module.Replicate(), module.Shard(0), module.Shard(1))
        return [([place] * outputs, [place] * inputs + [None] * others) for place in places]

    @shard(kernels._scaled_dot_product_flash_attention_for_cpu.default)  # type: ignore[untyped-decorator]
    def forward(query: Any, key: Any, value: Any, *others: Any, **options: Any) -> Any:
        return alike(2, 3, len(others))

    @shard(kernels._scaled_dot_product_flash_attention_for_cpu_backward.default)  # type: ignore[untyped-decorator]
    def backward(
        gradient: Any, query: Any, key: Any, value: Any, out: Any, logsumexp: Any, *others: Any, **options: Any
    ) -> Any:
        return alike(3, 6, len(others))


class _PlainDraws:
    """The tracker of random numbers of a mesh on which each rank draws from its own generator."""

    distribute_region_enabled = False

    @contextmanager
    def _distribute_region(self, *arguments: Any, **options: Any) -> Iterator[None]:
        yield


def draw_as_on_the_cpu(module: Any) -> None:
    """Let DTensor draw random numbers as on a CPU mesh.

    For CUDA it would use the two halves of the state of CUDA's generator, which the CPU's does not have.
    """
    if module is None:
        return
    real = module.is_rng_supported_mesh
    if getattr(real, "_composesim", False):
        return
    module._rng_tracker = module._rng_tracker or _PlainDraws()  # without one, `torch.distributed.tensor.randn` refuses

    def is_rng_supported_mesh(device_mesh: Any) -> bool:
        return False if device_mesh.device_type == "cuda" else bool(real(device_mesh))

    is_rng_supported_mesh._composesim = True  # type: ignore[attr-defined]
    for name in _NAMED:
        named = sys.modules.get(name)
        if getattr(named, "is_rng_supported_mesh", None) is real:
            named.is_rng_supported_mesh = is_rng_supported_mesh  # type: ignore[union-attr]
