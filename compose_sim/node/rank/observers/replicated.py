"""Hash, in `check`, the tensors that a rank declares equal on all ranks of a mesh, such as the inputs of tensor parallelism."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from ...records.precautions import ReplicatedTensor
from ..context import RankContext, here, place
from ..torch_hooks import after_import, wrap
from . import states

_COUNTS = "replicated.counts"
_MOST_NOTED = 20  # of each mesh


def begin(context: RankContext) -> None:
    if context.mode == "record":
        after_import("torch.distributed.tensor", _after_tensor)


def _after_tensor(module: ModuleType) -> None:
    @wrap(module.DTensor, "from_local")
    def from_local(original: Any, local: Any, mesh: Any = None, placements: Any = None, **options: Any) -> Any:
        if not sys.modules["torch"].compiler.is_compiling():
            context = here()
            if context is not None and mesh is not None and placements:
                context.guard(__name__, _note, local, mesh, placements)
        return original(local, mesh, placements, **options)

    module.DTensor.from_local = staticmethod(module.DTensor.from_local)


def _note(context: RankContext, local: Any, mesh: Any, placements: Any) -> None:
    if not all(each.is_replicate() for each in placements):
        return
    ranks = tuple(mesh.mesh.flatten().tolist())
    counts = context.memory.setdefault(_COUNTS, {})
    number = counts[ranks] = counts.get(ranks, 0) + 1
    torch: Any = sys.modules["torch"]
    if len(ranks) > 1 and number <= _MOST_NOTED and type(local.detach()) is torch.Tensor:
        (hashed,) = states.hashes_of([local.detach()], whole=True)
        is_input = not isinstance(local, torch.nn.Parameter)
        context.note(ReplicatedTensor(ranks, number, tuple(local.shape), hashed, is_input, place()))
