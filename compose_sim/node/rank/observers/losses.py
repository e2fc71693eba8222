"""What is each rank's own loss? The scalar that each backward pass starts from, to compare with what the script reports."""

from __future__ import annotations

from typing import Any

from ..context import Watch
from . import backward

_MOST_NOTED = 2000
_COUNT = "losses.count"


def install() -> None:
    backward.before.append(_note)


def _note(watch: Watch, tensors: Any, options: dict[str, Any]) -> None:
    count = watch.memory[_COUNT] = watch.memory.get(_COUNT, 0) + 1
    if count > _MOST_NOTED:
        return
    root = tensors[0] if isinstance(tensors, (list, tuple)) and len(tensors) == 1 else tensors
    if getattr(root, "numel", None) is None or root.numel() != 1:
        return
    if root.device.type != "cpu" and not watch.thorough:
        return  # to read it would make the rank wait for its GPU
    watch.note("loss", value=float(root.detach()), steps=watch.steps, n=count)
