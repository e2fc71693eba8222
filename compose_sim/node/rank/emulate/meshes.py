"""How do DTensor, FSDP and tensor parallelism run on emulated devices? The mode is on where torch's own code names a mesh's."""

from __future__ import annotations

import sys
from typing import Any

from .tensors import resumed

_RANDOM = "torch.distributed.tensor._random"
_NAMED = (_RANDOM, "torch.distributed.tensor._dispatch", "torch.distributed.tensor")


def emulate_schema(module: Any) -> None:
    """
    Once torch.distributed.tensor._op_schema is there.

    Below a call that our mode answers, DTensor makes a tensor on "the mesh's device" to learn the shape of a result.
    """
    name = "_rebuild_tensor_from_dtensor_meta"
    if hasattr(module, name):
        setattr(module, name, resumed(getattr(module, name)))


def emulate_dispatch(module: Any) -> None:
    """Once torch.distributed.tensor._dispatch is there: comparing two DTensors makes a tensor on the mesh's device as well."""
    dispatcher, name = module.OpDispatcher, "_dispatch_fast_path_python_tail"
    if hasattr(dispatcher, name):
        setattr(dispatcher, name, resumed(getattr(dispatcher, name)))
    draw_as_on_the_cpu(sys.modules.get(_RANDOM))


def draw_as_on_the_cpu(module: Any) -> None:
    """
    Have DTensor draw random numbers as on a mesh of CPUs.

    For CUDA it computes with the two halves of CUDA's generator state, which the CPU's has not.
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
