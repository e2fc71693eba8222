"""Record the rank's own loss, the single number that a backward pass starts from, to compare it with what the script reports."""

from __future__ import annotations

import math

from ...records.models import LossValue
from ..context import RankContext
from ..torch_hooks import points

_MAX_NOTED = 2000
_COUNT = "losses.count"


def install() -> None:
    points.BACKWARD.subscribe(_note)


def _note(context: RankContext, call: points.TorchCall) -> None:
    count = context.memory[_COUNT] = context.memory.get(_COUNT, 0) + 1
    if count > _MAX_NOTED:
        return
    root = points.root_of(call)
    if getattr(root, "numel", None) is None or root.numel() != 1:
        return
    if not root.is_cpu and not context.thorough:
        return  # reading it would make the rank wait for its GPU
    value = float(root.item())
    if math.isfinite(value):
        context.observations.note_often(LossValue, f'"value":{value!r}')
    else:
        context.note(LossValue(value))
