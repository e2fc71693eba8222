"""How is torch set up to emulate? Every part, in an order in which each finds what it builds on."""

from __future__ import annotations

from ...shared.import_hooks import after_import
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
    models,
    names,
    normalization,
    optimizers,
    printing,
    profiling,
    recurrent,
    refusals,
    storages,
    streams,
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
    optimizers,
    refusals,
    tensors,
)


def start(count: int) -> None:
    """From now on torch shows so many emulated devices."""
    devices.show(count)
    for part in _PARTS:
        part.install()
    workers.let_threads_emulate()
    after_import("torch.multiprocessing.reductions", workers.let_queues_carry_devices)
    after_import("torch.distributed.distributed_c10d", groups.emulate)
    after_import("torch.distributed", collectives.emulate)
    after_import("torch.backends.cudnn", recurrent.emulate)
    for module, refuse in refusals.IMPORTED.items():
        after_import(module, refuse)
    after_import("torch.distributed.tensor._op_schema", meshes.emulate_schema)
    after_import("torch.distributed.tensor._random", meshes.draw_as_on_the_cpu)
    after_import("torch.distributed.tensor._dispatch", meshes.emulate_dispatch)
    after_import("torch.nn.parallel.distributed", models.emulate_ddp)
