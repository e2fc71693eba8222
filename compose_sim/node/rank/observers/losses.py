"""Record the rank's own loss, the single number that a backward pass starts from, to compare it with what the script reports."""

from __future__ import annotations

import math
from typing import Any

from ...records.models import LossValue
from ..context import RankContext
from . import backward

_MOST_NOTED = 2000
_COUNT = "losses.count"


def install() -> None:
    backward.before.append(_note)


def _note(context: RankContext, tensors: Any, options: dict[str, Any]) -> None:
    count = context.memory[_COUNT] = context.memory.get(_COUNT, 0) + 1
    if count > _MOST_NOTED:
        return
    root = tensors[0] if isinstance(tensors, (list, tuple)) and len(tensors) == 1 else tensors
    if getattr(root, "numel", None) is None or root.numel() != 1:
        return
    if not root.is_cpu and not context.thorough:
        return  # reading it would make the rank wait for its GPU
    value = float(root.item())
    if math.isfinite(value):
        context.observations.note_often(LossValue, f'"value":{value!r}')
    else:
        context.note(LossValue(value))
