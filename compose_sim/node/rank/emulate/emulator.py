"""Set up all parts of the emulation, in the order of their dependencies."""

from __future__ import annotations

from typing import Any, Callable

from ...shared import import_hooks
from ..torch_hooks import after_import, features, private_names
from . import (
    accelerator,
    amp,
    collectives,
    compiling,
    conversions,
    cuda_module,
    devices,
    generators,
    groups,
    memory,
    meshes,
    names,
    normalization,
    nvml,
    optimizers,
    printing,
    profiling,
    refusals,
    storages,
    streams,
    support,
    tags,
    tensors,
    workers,
)

_PARTS = (
    tags,
    storages,
    cuda_module,
    memory,
    streams,
    generators,
    accelerator,
    conversions,
    printing,
    profiling,
    amp,
    compiling,
    names,
    normalization,
    nvml,
    optimizers,
    refusals,
    tensors,
)


def start(count: int) -> None:
    """Show this many emulated devices."""
    devices.show(count)
    for part in _PARTS:
        # A part replaces each name that torch has. If some are missing, only what uses these is not emulated.
        private_names.check(features.feature_of(part.__name__))
        part.install()
    workers.let_threads_emulate()
    _require("torch.distributed.distributed_c10d", groups.emulate)
    _require("torch.distributed", collectives.emulate)
    _require("torch.nn.parallel.distributed", collectives.emulate_ddp)
    after_import("torch.multiprocessing.reductions", workers.let_queues_carry_devices)
    after_import("torch.backends.cudnn", _show_cudnn)
    for module, refuse in refusals.IMPORTED.items():
        after_import(module, refuse)
    after_import("pynvml", nvml.emulate)
    after_import("torch.distributed.tensor._op_schema", meshes.emulate_schema)
    after_import("torch.distributed.tensor._random", meshes.draw_as_on_the_cpu)
    after_import("torch.distributed.tensor", meshes.shard_attention)
    after_import("torch.distributed.tensor._dispatch", meshes.emulate_dispatch)
    after_import("torch.distributed.tensor.parallel.loss", meshes.emulate_loss)


def _require(name: str, emulate: Callable[[Any], None]) -> None:
    """Emulate this part of torch once it has been imported; without it, there is no emulation."""
    import_hooks.after_import(name, lambda module: support.attempt(lambda: emulate(module)))


def _show_cudnn(cudnn: Any) -> None:
    """Report cuDNN, but let recurrent layers compute as on the CPU: cuDNN would pack their weights."""
    cudnn.is_acceptable = lambda tensor: False
    cudnn.is_available = lambda: True
    cudnn.version = lambda: cuda_module.CUDNN_VERSION
