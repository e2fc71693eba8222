"""Set up all parts of the emulation, in the order of their dependencies."""

from __future__ import annotations

from typing import Any, Callable

from ...shared import import_hooks
from ..torch_hooks import after_import, private_names
from . import (
    collectives,
    conversions,
    cuda_module,
    devices,
    failures,
    generators,
    meshes,
    products,
    refusals,
    streams,
    tensors,
    training_step,
    workers,
)

# What sets up a part, with the feature whose private names it replaces; those of `emulate` have been checked. A part replaces each name
# that torch has. If some are missing, only what uses these is not emulated.
_PARTS: tuple[tuple[str, Callable[[], None]], ...] = (
    ("emulate", devices.tag_tensors),
    ("emulate", conversions.tag_storages),
    ("emulate", cuda_module.describe_devices),
    ("memory", cuda_module.report_memory),
    ("streams", streams.stream_nothing),
    ("generators", generators.install),
    ("accelerator", streams.accelerate),
    ("profiling", refusals.profile_the_cpu),
    ("amp", training_step.cast_as_on_the_cpu),
    ("emulate", products.compute_as_tensor_cores),
    ("emulate", refusals.compile_eagerly),
    ("emulate", devices.replace_classes),
    ("nvml", cuda_module.report_use),
    ("emulate", training_step.step_without_mode),
    ("refusals", refusals.refuse_the_rest),
    ("emulate", tensors.install),
)


def start(count: int) -> None:
    """Show this many emulated devices."""
    devices.show(count)
    for feature, install in _PARTS:
        if feature != "emulate":
            private_names.check(feature)
        install()
    workers.let_threads_emulate()
    _require("torch.distributed.distributed_c10d", collectives.emulate_groups)
    _require("torch.distributed", collectives.emulate_collectives)
    _require("torch.nn.parallel.distributed", collectives.emulate_ddp)
    after_import("torch.futures", workers.let_futures_emulate)
    after_import("torch.distributed.rpc.internal", workers.let_calls_emulate)
    after_import("torch.multiprocessing.reductions", workers.let_queues_carry_devices)
    after_import("torch.backends.cudnn", _show_cudnn)
    for module, refuse in refusals.IMPORTED.items():
        after_import(module, refuse)
    after_import("pynvml", cuda_module.emulate_pynvml, "nvml")
    after_import("torch.distributed.tensor._op_schema", meshes.emulate_schema)
    after_import("torch.distributed.tensor._random", meshes.draw_as_on_the_cpu)
    after_import("torch.distributed.tensor", meshes.shard_attention)
    after_import("torch.distributed.tensor._dispatch", meshes.emulate_dispatch)
    after_import("torch.distributed.tensor.parallel.loss", meshes.emulate_loss)


def _require(name: str, emulate: Callable[[Any], None]) -> None:
    """Emulate this part of torch once it has been imported; without it, there is no emulation."""
    import_hooks.after_import(name, lambda module: failures.attempt(lambda: emulate(module)))


def _show_cudnn(cudnn: Any) -> None:
    """Report cuDNN, but let recurrent layers compute as on the CPU: cuDNN would pack their weights."""
    cudnn.is_acceptable = lambda tensor: False
    cudnn.is_available = lambda: True
    cudnn.version = lambda: cuda_module.CUDNN_VERSION
