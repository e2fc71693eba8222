"""Collect the gradients that an optimizer sees at a step, and compare those of two runs.

Clipping and loss scaling by torch's own functions are undone, because they would hide the difference.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ..context import RankContext
from ..torch_hooks import points
from ..tracked import local, parameters_of
from . import shards

Gradients = list[Any]  # a tensor or None for each parameter, in the optimizer's order
# Relative to the norm of the whole gradient: a tensor below this is rounding if it is compared by itself.
_FLOORS = {"float32": 1e-3, "tf32": 1e-2, "low": 1e-1}
_NONE_FLAT: Mapping[int, shards.FlatPart] = {}
_VANISHED = 1e-5  # relative to the largest gradient so far: a gradient below this is only rounding
_NOISE = 1e-6  # relative to the parameters: a gradient below this is what is left of terms that cancel out


class GradientComparison(NamedTuple):
    """How the gradients of two steps differ."""

    finite: bool
    worst: int  # the position of the tensor that differs most
    difference: float | None  # of that tensor, relative
    cosine: float | None  # between both gradients as a whole
    least_cosine: float | None  # between those of one tensor
    ratio: float | None  # of their norms, ours / recorded
    norm: float | None  # recorded
    vanished: bool  # whether the recorded gradient is no more than rounding


class Clipped:
    """The factors by which torch.nn.utils.clip_grad_norm_ has scaled the gradients of parameters since the last step."""

    def __init__(self) -> None:
        self.factors: dict[int, float] = {}
        self.by_value = False

    def clear(self) -> None:
        """Forget the factors: a step has been made."""
        self.factors, self.by_value = {}, False

    def notice(self) -> None:
        """Follow torch's functions: nothing else knows what a gradient was before it was clipped."""
        points.NORM_CLIPPED.subscribe(self._notice_norm)
        points.VALUE_CLIPPED.subscribe(self._notice_value)
        points.FSDP_CLIPPED.subscribe(self._notice_fsdp)

    def _notice_norm(self, _: RankContext, call: points.TorchCall) -> points.Steps:
        tensors = points.clipped_tensors(call)
        norm = yield
        self._scaled(tensors, call.value("max_norm"), norm)

    def _notice_value(self, _: RankContext, call: points.TorchCall) -> None:
        self.by_value = True

    def _notice_fsdp(self, _: RankContext, call: points.TorchCall) -> points.Steps:
        factors = dict(self.factors)  # at world size 1, the method calls torch's function
        norm = yield
        self.factors = factors
        self._scaled(call.owner.parameters(), call.value("max_norm"), norm)

    def _scaled(self, parameters: Iterable[Any], max_norm: float, norm: Any) -> None:
        total = getattr(norm, "full_tensor", lambda: norm)()
        factor = min(1.0, float(max_norm) / (float(total) + 1e-6))
        for parameter in parameters:
            self.factors[id(parameter)] = factor * self.factors.get(id(parameter), 1.0)


def settings_of(optimizer: Any) -> list[dict[str, Any]]:
    """Return the numbers in each parameter group: learning rate, momentum, …"""
    return [
        {key: _plain(value) for key, value in group.items() if _is_number(value)} for group in optimizer.param_groups
    ]


def set_settings(optimizer: Any, settings: list[dict[str, Any]]) -> None:
    """Set these numbers in each group; a learning rate that is a tensor remains the same tensor."""
    for group, numbers in zip(optimizer.param_groups, settings):
        for key, value in numbers.items():
            if isinstance(group.get(key), torch.Tensor):
                group[key].fill_(value)
            elif key in group:
                group[key] = value


def unset_settings(optimizer: Any, now: dict[str, Any]) -> None:
    """Set the numbers back that the step left as recorded: schedulers often multiply the rate that they find."""
    found = zip(now["own_settings"], now["settings"], settings_of(optimizer))
    own = [{key: value for key, value in one.items() if kept.get(key) == then.get(key)} for one, then, kept in found]
    set_settings(optimizer, own)


def only(values: Sequence[Any], wanted: Sequence[bool]) -> Gradients:
    """Return the values of the wanted parameters, and None for the others."""
    return [value if is_wanted else None for value, is_wanted in zip(values, wanted)]


def gradients_of(optimizer: Any, clipped: Clipped, flat: Mapping[int, shards.FlatPart] = _NONE_FLAT) -> Gradients:
    """Return the gradients that this step will use, before clipping and scaling, as copies in main memory.

    Of a sharded gradient, that is this rank's part; `flat` has the parts of those that the first FSDP shards.
    """
    scale = getattr(optimizer, "grad_scale", None)  # set by GradScaler if the optimizer itself unscales
    found: Gradients = []
    for parameter in parameters_of(optimizer):
        gradient = parameter.grad
        if gradient is None:
            found.append(None)
            continue
        factor = clipped.factors.get(id(parameter), 1.0) * (1.0 if scale is None else float(scale))
        gradient = gradient.detach()
        gradient = gradient if factor == 1.0 or factor == 0.0 else gradient / factor
        found.append(shards.copied(gradient, flat.get(id(parameter))))
    return found


def compare(ours: Gradients, recorded: Gradients, *, largest: float, precision: str) -> GradientComparison:
    """
    Compare the gradients of two steps: the worst tensor and its difference, the cosine between them and the ratio of their norms.

    `largest` is the norm of the largest recorded gradient so far, `precision` the one in which gradients were computed.
    """
    pairs = [_pair(one, other) for one, other in zip(ours, recorded)]
    own = math.sqrt(sum(float(one.square().sum()) for one, _ in pairs))
    norm = math.sqrt(sum(float(other.square().sum()) for _, other in pairs))
    dot = sum(float((one * other).sum()) for one, other in pairs)
    told = [(one, other) for one, other in pairs if one.any() or other.any()]
    cosines = [float((one * other).sum()) / (float(one.norm() * other.norm()) or 1.0) for one, other in told]
    floor = max(_FLOORS[precision] * norm, _VANISHED * largest, 1e-30)
    differences = [float((one - other).norm()) / max(float(other.norm()), floor) for one, other in pairs]
    differences = [value if math.isfinite(value) else math.inf for value in differences]
    worst = max(range(len(differences)), key=differences.__getitem__, default=0)
    finite = math.isfinite(own) and math.isfinite(norm)
    return GradientComparison(
        finite=finite,
        worst=worst,
        difference=differences[worst] if differences and finite else None,
        cosine=dot / (own * norm) if own and norm and finite else None,
        least_cosine=min(cosines, default=None) if finite else None,
        ratio=own / norm if norm and finite else None,
        norm=norm if finite else None,
        vanished=norm <= _VANISHED * largest,
    )


def least_to_compare(parameters: Gradients) -> float:
    """Return the norm of the smallest gradient, as `largest` of `compare`, beside which others are not only rounding."""
    squares = (float(each.detach().float().square().sum()) for each in parameters if each is not None)
    return _NOISE / _VANISHED * math.sqrt(sum(squares))


def add(sums: Gradients, more: Gradients, share: float) -> Gradients:
    """Return `sums` + `share` × `more`."""
    return [
        one if other is None else other * share if one is None else one + other * share
        for one, other in zip(sums, more)
    ]


def put(parameters: Sequence[Any], values: Sequence[Any]) -> bool:
    """Set parameters to these values; do nothing and return False if the shapes do not fit."""
    if len(parameters) != len(values) or any(one.shape != other.shape for one, other in zip(parameters, values)):
        return False
    with torch.no_grad():
        for parameter, value in zip(parameters, values):
            local(parameter).copy_(value)
    return True


def _pair(one: Any, other: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return both gradients; None counts as zeros, since DDP turns one into the other."""
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
