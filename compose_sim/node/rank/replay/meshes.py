"""Give a script at world size 1 the DeviceMesh that it asks for, with size 1 in every dimension.

So `init_device_mesh("cpu", (world_size // 2, 2))` works in a replay, where FSDP2 and tensor parallelism run on whole tensors.
"""

from __future__ import annotations

import sys
from typing import Any

from ..context import RankContext
from ..torch_hooks import points


def allow_any_shape() -> None:
    """Replace the shapes of meshes, and the shares of samplers, which divide by a size of the mesh."""
    points.MESH_INITIALIZED.subscribe(_initialize)
    points.MESH_MADE.subscribe(_make)
    points.SAMPLER_MADE.subscribe(_share)


def _initialize(_: RankContext, call: points.TorchCall) -> None:
    call.replace("mesh_shape", (1,) * len(call.value("mesh_shape")))


def _make(_: RankContext, call: points.TorchCall) -> None:
    mesh = call.value("mesh")
    if mesh is not None and "_layout" not in call.options:
        torch: Any = sys.modules["torch"]
        call.replace("mesh", torch.zeros((1,) * torch.as_tensor(mesh).ndim, dtype=torch.int64))


def _share(_: RankContext, call: points.TorchCall) -> None:
    call.replace("num_replicas", 1)
    call.replace("rank", 0)
