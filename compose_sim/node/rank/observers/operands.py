"""Tell, in `check`, which collectives of a script move gradients or parameters, and which move something else, such as activations.

An operand is recognized by its memory, or, as a flat copy of several tensors, by its first numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from .. import tracked
from ..context import RankContext
from .gradients import BACKWARDS, ENDED

_STORAGES = "operands.storages"
_FIRST = 4  # numbers
_MAX_METRIC = 8  # numbers
_PARALLEL = 0.9999  # the least cosine of first numbers that are the same up to a factor and rounding


def kind_of(context: RankContext, operand: Any) -> str:
    """Return "gradient" or "parameter" if a collective is given one, or what begins like one; "zeros" for nothing else; or ""."""
    known = _storages(context).get(operand.untyped_storage().data_ptr())
    if known or operand.numel() <= _MAX_METRIC or not operand.is_floating_point():
        return known or ""
    if operand.element_size() > 1 and not operand.any():  # of the small types, torch knows no `any`
        return "zeros"
    if operand.dim() != 1:
        return ""
    first = _first_numbers(operand)
    return next((kind for kind, tensor in _held() if _are_parallel(first, _first_numbers(tensor))), "")


def _storages(context: RankContext) -> dict[int, str]:
    """Return what lies at each address; backward passes and steps give parameters new gradients."""
    when = (context.steps, *(context.memory.get(each, 0) for each in (BACKWARDS, ENDED)), tracked.optimizers.made)
    known: tuple[Any, dict[int, str]] = context.memory.get(_STORAGES, (None, {}))
    if known[0] != when:
        known = context.memory[_STORAGES] = when, {each.untyped_storage().data_ptr(): kind for kind, each in _held()}
    return known[1]


def _held() -> Iterator[tuple[str, Any]]:
    """Yield the gradients and the parameters of all optimizers that are plain tensors."""
    torch: Any = sys.modules["torch"]
    parameters = tracked.held_parameters()
    tensors = [("parameter", each) for each in parameters] + [("gradient", each.grad) for each in parameters]
    for kind, each in tensors:
        if each is not None and type(each.detach()) is torch.Tensor and each.layout is torch.strided and each.numel():
            yield kind, each


def _first_numbers(tensor: Any) -> list[float]:
    return [float(each) for each in tensor.detach().reshape(-1)[:_FIRST].tolist()]


def _are_parallel(one: list[float], other: list[float]) -> bool:
    """Return whether both are the same numbers up to a positive factor; one number alone tells nothing."""
    pairs = list(zip(one, other))
    dot = sum(left * right for left, right in pairs)
    squares = sum(left * left for left, _ in pairs) * sum(right * right for _, right in pairs)
    return len(pairs) > 1 and dot > 0 and dot * dot >= _PARALLEL**2 * squares
