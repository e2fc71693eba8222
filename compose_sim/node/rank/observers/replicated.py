"""Hash, in `check`, the tensors that a rank declares equal on all ranks of a mesh, such as the inputs of tensor parallelism."""

from __future__ import annotations

import sys
from typing import Any

from ...records.precautions import ReplicatedTensor
from ..context import RankContext, place
from ..torch_hooks import points
from . import sketches, states

_COUNTS = "replicated.counts"
_MAX_NOTED = 20  # of each mesh


def begin(context: RankContext) -> None:
    if context.mode == "record":
        points.DECLARED_LOCAL.subscribe(_note)


def _note(context: RankContext, call: points.TorchCall) -> None:
    local, mesh, placements = (call.value(name) for name in ("local_tensor", "device_mesh", "placements"))
    if sys.modules["torch"].compiler.is_compiling() or mesh is None or not placements:
        return
    if not all(each.is_replicate() for each in placements):
        return
    ranks = tuple(mesh.mesh.flatten().tolist())
    counts = context.memory.setdefault(_COUNTS, {})
    number = counts[ranks] = counts.get(ranks, 0) + 1
    torch: Any = sys.modules["torch"]
    if len(ranks) > 1 and number <= _MAX_NOTED and type(local.detach()) is torch.Tensor:
        (hashed,) = states.hashes_of([local.detach()], whole=True)
        is_input = not isinstance(local, torch.nn.Parameter)
        sums = tuple(sketches.sums_of(context, local).tolist()) if is_input else None
        context.note(ReplicatedTensor(ranks, number, tuple(local.shape), hashed, is_input, sums, place()))
