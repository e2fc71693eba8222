"""Hash what the training gives to its models, to know whether one rank trains on the samples of all ranks together.

The hash of a tensor is a sum over its elements: that of a whole batch is the sum of those of its parts, however ranks divide it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..tracked import Outermost
from .batches import tensors_in

Hashes = dict[str, int]  # by model and position in the call
MAX_ELEMENTS = 1 << 20
_ODD, _ANOTHER = 0x1E3779B97F4A7C15, 0x3F58476D1CE4E5B9
_MODULUS = 1 << 64


class Inputs:
    """The tensors without a gradient that were given to the outermost models since the last step, if no loader gave a batch."""

    def __init__(self) -> None:
        self.rows = 0  # of the largest tensor
        self.called = Outermost()
        self._hashes: Hashes = {}
        self._is_complete = True
        self._fetched = self._fetched_at_step = 0  # batches to train on
        self._fetched_by: dict[int, int] = {}  # at the last step of each optimizer

    def fetched(self) -> None:
        """Count a batch of a loader, unless it is one of an evaluation."""
        self._fetched += torch.is_grad_enabled()

    def add(self, module: Any, given: Sequence[Any]) -> bool:
        """Add the inputs of one call, and return True, if this is a call of an outermost model without a batch of a loader."""
        number = self.called.number(module)
        if number < 0 or self._fetched > self._fetched_at_step:
            return False
        for position, tensor in enumerate(tensors_in(given)):
            if tensor.requires_grad:
                continue  # computed by another model
            self._is_complete &= type(tensor) is torch.Tensor and tensor.numel() <= MAX_ELEMENTS
            if self._is_complete:
                name = f"{number}.{position}"
                self._hashes[name] = (self._hashes.get(name, 0) + hash_of(tensor)) % _MODULUS
                self.rows = max(self.rows, len(tensor) if tensor.ndim else 1)
        return True

    def clear(self) -> None:
        """Forget what models were given so far."""
        self._hashes, self._is_complete, self.rows, self.called = {}, True, 0, Outermost()

    def take(self, optimizer: int) -> Hashes:
        """Return the sums since the last step; none if a tensor was too large, or a loader gave this optimizer a batch."""
        found = self._hashes if self._is_complete and self._fetched == self._fetched_by.get(optimizer, 0) else {}
        self._hashes, self._is_complete = {}, True
        self._fetched_at_step = self._fetched_by[optimizer] = self._fetched
        return found


def are_joined(whole: Hashes, parts: Sequence[Hashes]) -> bool:
    """Return whether the inputs of one rank are those of all ranks together; several ranks may have the same part of a batch."""
    if not whole or any(whole.keys() != part.keys() for part in parts):
        return False
    return all(_is_sum(number, [part[name] for part in parts]) for name, number in whole.items())


def held_by(parameters: Sequence[Any]) -> list[int] | None:
    """Return the hashes of parameters; None if one is too large, or sharded by torch itself."""
    plain = all(each.layout is torch.strided and type(each.detach()) is torch.Tensor for each in parameters)
    return (
        [hash_of(each) for each in parameters]
        if plain and sum(each.numel() for each in parameters) <= MAX_ELEMENTS
        else None
    )


def replicated(whole: Sequence[int], parts: Sequence[Sequence[int]]) -> list[bool] | None:
    """Return which parameters all ranks hold; None unless ranks hold every other one in parts, as tensor parallelism does."""
    by_parameter = list(zip(*parts))
    if len(by_parameter) != len(whole):
        return None
    same = [set(found) == {own} for own, found in zip(whole, by_parameter)]
    in_parts = all(each or _is_sum(own, found) for each, own, found in zip(same, whole, by_parameter))
    return same if in_parts and any(same) else None


def _is_sum(whole: int, parts: Sequence[int]) -> bool:
    """Return whether all parts add up to the whole, or one of each kind if equally many ranks have it."""
    counts = {parts.count(part) for part in set(parts)}
    return sum(parts) % _MODULUS == whole or (len(counts) == 1 and sum(set(parts)) % _MODULUS == whole)


def hash_of(tensor: torch.Tensor) -> int:
    """Return the sum of a hash of each element."""
    if tensor.layout is not torch.strided:  # as the gradient of an embedding may be
        tensor = tensor.to_dense()
    bits = tensor.detach().reshape(-1).to("cpu", torch.float64).view(torch.int64)
    mixed = (bits ^ _ANOTHER) * _ODD  # zeros count, too
    mixed = (mixed ^ (mixed >> 31)) * _ANOTHER
    return int((mixed ^ (mixed >> 29)).sum()) % _MODULUS
