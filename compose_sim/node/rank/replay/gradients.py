"""What gradients does an optimizer see at a step, and how far are two ranks' from one another?

Clipping and loss scaling are undone, as far as torch's own functions did them: what they hide is what is asked for.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Sequence
from typing import Any

import torch

Gradients = list[Any]  # a tensor or None for each parameter, in the optimizer's order
# Of the whole gradient's norm: a tensor with less than this is rounding, compared by itself.
_FLOORS = {"float32": 1e-3, "tf32": 1e-2, "low": 1e-1}
_VANISHED = 1e-5  # of the largest gradient so far: a gradient with less is rounding as a whole


class Clipped:
    """By how much the gradients of parameters were made smaller by torch.nn.utils.clip_grad_norm_ since the last step."""

    def __init__(self) -> None:
        self.factors: dict[int, float] = {}
        self.by_value = False

    def clear(self) -> None:
        """A step has been taken."""
        self.factors, self.by_value = {}, False

    def notice(self) -> None:
        """Watch torch's functions: nothing else can say what a gradient was before it was clipped."""
        package, module = torch.nn.utils, sys.modules["torch.nn.utils.clip_grad"]
        by_norm, by_value = module.clip_grad_norm_, module.clip_grad_value_

        @functools.wraps(by_norm)
        def clip_grad_norm_(parameters: Any, max_norm: float, *arguments: Any, **options: Any) -> Any:
            parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
            norm = by_norm(parameters, max_norm, *arguments, **options)
            factor = min(1.0, float(max_norm) / (float(norm) + 1e-6))
            for parameter in parameters:
                self.factors[id(parameter)] = factor * self.factors.get(id(parameter), 1.0)
            return norm

        @functools.wraps(by_value)
        def clip_grad_value_(*arguments: Any, **options: Any) -> Any:
            self.by_value = True
            return by_value(*arguments, **options)

        for owner in (package, module):
            owner.clip_grad_norm_, owner.clip_grad_value_ = clip_grad_norm_, clip_grad_value_  # type: ignore[attr-defined]


def parameters_of(optimizer: Any) -> list[Any]:
    """In the order of its groups."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def settings_of(optimizer: Any) -> list[dict[str, Any]]:
    """The numbers of each group: learning rate, momentum, …"""
    return [
        {key: _plain(value) for key, value in group.items() if _is_number(value)} for group in optimizer.param_groups
    ]


def gradients_of(optimizer: Any, clipped: Clipped) -> Gradients:
    """What this step is about to use, before it was clipped and scaled; copies, in main memory."""
    scale = getattr(optimizer, "grad_scale", None)  # set by GradScaler where the optimizer itself unscales
    found: Gradients = []
    for parameter in parameters_of(optimizer):
        gradient = parameter.grad
        if gradient is None:
            found.append(None)
            continue
        gradient = gradient.detach()
        gradient = gradient.to_dense() if gradient.layout is not torch.strided else gradient
        factor = clipped.factors.get(id(parameter), 1.0) * (1.0 if scale is None else float(scale))
        copied = gradient.to("cpu", copy=True)
        found.append(copied if factor == 1.0 or factor == 0.0 else copied / factor)
    return found


def compare(ours: Gradients, recorded: Gradients, *, largest: float, precision: str) -> dict[str, Any]:
    """
    How two steps' gradients differ: the worst tensor with its difference, the cosine between them and the ratio of their norms.

    `largest` is the norm of the largest recorded gradient so far, `precision` what gradients were computed in.
    """
    pairs = [_pair(one, other) for one, other in zip(ours, recorded)]
    own = math.sqrt(sum(float(one.square().sum()) for one, _ in pairs))
    norm = math.sqrt(sum(float(other.square().sum()) for _, other in pairs))
    dot = sum(float((one * other).sum()) for one, other in pairs)
    floor = max(_FLOORS[precision] * norm, _VANISHED * largest, 1e-30)
    differences = [float((one - other).norm()) / max(float(other.norm()), floor) for one, other in pairs]
    differences = [value if math.isfinite(value) else math.inf for value in differences]
    worst = max(range(len(differences)), key=differences.__getitem__, default=0)
    finite = math.isfinite(own) and math.isfinite(norm)
    return {
        "finite": finite,
        "tensor": worst,
        "difference": differences[worst] if differences and finite else None,
        "cosine": dot / (own * norm) if own and norm and finite else None,
        "ratio": own / norm if norm and finite else None,
        "norm": norm if finite else None,
        "vanished": norm <= _VANISHED * largest,
    }


def add(sums: Gradients, more: Gradients, share: float) -> Gradients:
    """`sums` + `share` × `more`."""
    return [
        one if other is None else other * share if one is None else one + other * share
        for one, other in zip(sums, more)
    ]


def put(parameters: Sequence[Any], values: Sequence[Any]) -> bool:
    """Have parameters hold these values; nothing is done where they do not fit."""
    if len(parameters) != len(values) or any(one.shape != other.shape for one, other in zip(parameters, values)):
        return False
    with torch.no_grad():
        for parameter, value in zip(parameters, values):
            parameter.copy_(value)
    return True


def _pair(one: Any, other: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """No gradient is a gradient of zeros: DDP makes the one of the other."""
    if one is None and other is None:
        return torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    one = torch.zeros_like(other) if one is None else one
    other = torch.zeros_like(one) if other is None else other
    return one.double(), other.double()


def _is_number(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.numel() == 1
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) else value
