"""Let DTensor, FSDP and tensor parallelism use emulated devices: enable the mode in torch's code that names a mesh's
device.
"""

from __future__ import annotations

import sys
from typing import Any

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
    """
    Patch torch.distributed.tensor._dispatch once it is imported: comparing two DTensors also makes a tensor on the
    mesh's device.
    """
    dispatcher, name = module.OpDispatcher, "_dispatch_fast_path_python_tail"
    if hasattr(dispatcher, name):
        setattr(dispatcher, name, resumed(getattr(dispatcher, name)))
    draw_as_on_the_cpu(sys.modules.get(_RANDOM))


def draw_as_on_the_cpu(module: Any) -> None:
    """Let DTensor draw random numbers as on a CPU mesh.

    For CUDA it would use the two halves of the state of CUDA's generator, which the CPU's does not have.
    """
    if module is None:
        return
    real = module.is_rng_supported_mesh
    if getattr(real, "_composesim", False):
        return

    def is_rng_supported_mesh(device_mesh: Any) -> bool:
        return False if device_mesh.device_type == "cuda" else bool(real(device_mesh))

    is_rng_supported_mesh._composesim = True  # type: ignore[attr-defined]
    for name in _NAMED:
        named = sys.modules.get(name)
        if getattr(named, "is_rng_supported_mesh", None) is real:
            named.is_rng_supported_mesh = is_rng_supported_mesh  # type: ignore[union-attr]
