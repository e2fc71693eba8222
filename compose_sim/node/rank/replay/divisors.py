"""Find the numbers by which a script divides its loss."""

from __future__ import annotations

from typing import Any

import torch


def divisors_of(root: Any) -> set[float]:
    """Return the plain numbers by which a loss is divided after the sum or mean: `loss.sum() / 32` has 32."""
    found: set[float] = set()
    level = [root.grad_fn]
    for _ in range(8):
        for node in level:
            name = type(node).__name__
            if name.startswith(("DivBackward", "MulBackward")):
                number = _number(getattr(node, "_saved_other", None))
                if number:
                    found.add(round(number if name.startswith("Div") else 1.0 / number, 6))
        level = [
            following
            for node in level
            for following, _ in getattr(node, "next_functions", ())
            if following is not None and not type(node).__name__.startswith(("Sum", "Mean"))
        ][:32]
    return found


def _number(value: Any) -> float:
    if isinstance(value, torch.Tensor):
        return float(value) if value.numel() == 1 and not value.requires_grad else 0.0
    return float(value) if isinstance(value, (int, float)) else 0.0
