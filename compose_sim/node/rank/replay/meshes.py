"""Give a script at world size 1 the DeviceMesh that it asks for, with size 1 in every dimension.

So `init_device_mesh("cpu", (world_size // 2, 2))` works in a replay, where FSDP2 and tensor parallelism run on whole tensors.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from ..torch_hooks import after_import, wrap


def allow_any_shape() -> None:
    """Replace the shapes of meshes, and the shares of samplers, which divide by a size of the mesh."""
    after_import("torch.distributed.device_mesh", _after_device_mesh)
    after_import("torch.utils.data.distributed", _after_sampler)


def _after_device_mesh(module: ModuleType) -> None:
    @wrap(module, "init_device_mesh")
    def init_device_mesh(original: Any, device_type: str, mesh_shape: Any, *arguments: Any, **options: Any) -> Any:
        return original(device_type, (1,) * len(mesh_shape), *arguments, **options)

    @wrap(module.DeviceMesh, "__init__")
    def make(original: Any, self: Any, device_type: str, mesh: Any = None, *arguments: Any, **options: Any) -> None:
        if mesh is not None and "_layout" not in options:
            torch: Any = sys.modules["torch"]
            mesh = torch.zeros((1,) * torch.as_tensor(mesh).ndim, dtype=torch.int64)
        original(self, device_type, mesh, *arguments, **options)


def _after_sampler(module: ModuleType) -> None:
    @wrap(module.DistributedSampler, "__init__")
    def make(
        original: Any, self: Any, dataset: Any, num_replicas: Any = None, rank: Any = None, *others: Any, **options: Any
    ) -> None:
        original(self, dataset, 1, 0, *others, **options)
