"""Infer from values how ranks divide a parameter that one rank holds as a whole, and put gradients together in the same way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

_MOST_GROUPS = 4  # of a fused matrix, such as query, key and value


class Layout(NamedTuple):
    """How ranks hold one parameter: all of them the whole, or each a part along a dimension."""

    ranks: tuple[int, ...]  # whose values make up the whole; others hold copies of these
    dim: int | None = None  # None if each holds the whole
    groups: int = 1  # fused matrices, or single rows, that are divided each by itself

    def joined(self, values: Sequence[Any], *, nearest_to: Any = None) -> Any:
        """
        Return the whole of what each rank holds; None if a part is missing.

        Ranks need not use all that they hold: of those that hold the whole, that is the first, or the one nearest to what is given.
        """
        if self.dim is None:
            known = [each for each in values if each is not None]
            if nearest_to is None or not known:
                return values[0]
            return min(known, key=lambda each: float((each - nearest_to).norm()))
        parts = [values[rank] for rank in self.ranks]
        return None if any(part is None for part in parts) else _concatenated(parts, self.dim, self.groups)


def infer(whole: Any, held: Sequence[Any], known: Sequence[Layout] = ()) -> Layout | None:
    """
    Return how ranks divide this parameter, given what each of them holds; None if they do not make up the whole.

    Parts that begin as zeros look alike: then the parts of other parameters, whose layouts are `known`, tell which ranks hold copies.
    """
    if all(each.shape == whole.shape and torch.equal(each, whole) for each in held):
        return Layout((0,))
    for ranks in dict.fromkeys(_candidates(held, known)):
        for dim, groups in _ways(whole, [held[rank] for rank in ranks]):
            if torch.equal(_concatenated([held[rank] for rank in ranks], dim, groups), whole):
                return Layout(ranks, dim, groups)
    return None


def _candidates(held: Sequence[Any], known: Sequence[Layout]) -> Iterator[tuple[int, ...]]:
    """Yield sets of ranks that may hold the whole together: all, one for each different part, and those of other parameters."""
    yield tuple(range(len(held)))
    distinct: list[int] = []
    for rank, each in enumerate(held):
        if not any(each.shape == held[one].shape and torch.equal(each, held[one]) for one in distinct):
            distinct.append(rank)
    yield tuple(distinct)
    yield from (layout.ranks for layout in known if layout.dim is not None)


def _ways(whole: Any, parts: Sequence[Any]) -> Iterator[tuple[int, int]]:
    """Yield the dimensions along which parts have the size of the whole together, each with possible numbers of fused matrices."""
    for dim in range(whole.dim()):
        sizes = [part.shape[dim] for part in parts if part.dim() == whole.dim()]
        others = {(*part.shape[:dim], *part.shape[dim + 1 :]) for part in parts}
        if (
            len(sizes) == len(parts)
            and sum(sizes) == whole.shape[dim]
            and others == {(*whole.shape[:dim], *whole.shape[dim + 1 :])}
        ):
            yield from ((dim, groups) for groups in range(1, _MOST_GROUPS) if all(size % groups == 0 for size in sizes))
            yield dim, max(sizes)  # dealt out one by one, such as the rows of a table


def _concatenated(parts: Sequence[Any], dim: int, groups: int) -> Any:
    chunks = [part.chunk(groups, dim) for part in parts]
    return torch.cat([chunk[group] for group in range(groups) for chunk in chunks if group < len(chunk)], dim)
