"""Infer from values how ranks divide a parameter that one rank holds as a whole, and put gradients together in the same way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

_MOST_GROUPS = 4  # of a fused matrix, such as query, key and value
_MAX_PADDING = 0.25  # of the whole: what ranks add to hold equally much


class Layout(NamedTuple):
    """How ranks hold one parameter: all of them the whole, or each a part along a dimension."""

    ranks: tuple[int, ...]  # whose values make up the whole; others hold copies of these
    dim: int | None = None  # None if each holds the whole
    groups: int = 1  # fused matrices, or single rows, that are divided each by itself
    size: int | None = None  # of the whole along the dimension, if what ranks hold is padded

    def joined(self, values: Sequence[Any], *, nearest_to: Any = None) -> Any:
        """
        Return the whole of what each rank holds; None if a part is missing.

        Ranks need not use all that they hold: of those that hold the whole, that is the first, or the one nearest to what is given.
        """
        if self.dim is None:
            known = [each for each in values if each is not None]
            if nearest_to is None or not known:
                return values[self.ranks[0]]
            return min(known, key=lambda each: float((each - nearest_to).norm()))
        parts = [values[rank] for rank in self.ranks]
        if any(part is None for part in parts):
            return None
        return _concatenated(parts, self.dim, self.groups, self.size)


def infer(whole: Any, held: Sequence[Any], known: Sequence[Layout] = (), before: Layout | None = None) -> Layout | None:
    """
    Return how ranks divide this parameter, given what each of them holds; None if they do not make up the whole.

    Parts that begin as zeros look alike: then they are divided as the parameter `before` is, such as the weight of a bias, or as others
    are whose layouts are `known`; None if these do not agree.
    """
    holding = [rank for rank, each in enumerate(held) if each is not None]
    if all(_same(held[rank], whole) for rank in holding):
        return Layout((holding[0],))
    if len(holding) < len(held):
        return None
    found: list[Layout] = []
    for ranks in dict.fromkeys(_candidates(held, known)):
        parts = [held[rank] for rank in ranks]
        for dim, groups, size in dict.fromkeys(_ways(whole, parts)):
            if torch.equal(_concatenated(parts, dim, groups, size), whole):
                found.append(Layout(ranks, dim, groups, size))
    alike = found if len(found) < 2 else [each for each in found if before is not None and each == before]
    alike = alike or [each for each in dict.fromkeys(known) if each in found]
    if len(alike) == 1:
        return alike[0]
    return None if alike or not found else found[0]


def positions(wholes: Sequence[Any], held: Sequence[Sequence[Any]]) -> list[tuple[int | None, ...]] | None:
    """
    Return where each rank keeps each parameter: at its own place, or if ranks are the stages of a pipeline, in the list of a stage.

    None if these are not all parameters. Stages follow one another; a later one may also hold a copy of what an earlier one holds.
    """
    if all(len(own) == len(wholes) for own in held):
        return [(at,) * len(held) for at in range(len(wholes))]
    found: list[dict[int, int]] = []
    begin = 0
    for rank, own in enumerate(held):
        copies = [other for other in range(rank) if len(held[other]) == len(own) and all(map(_same, held[other], own))]
        stage = found[copies[0]] if copies else _stage(wholes, own, begin)
        if stage is None:
            return None
        found.append(stage)
        begin = max([begin, *(at + 1 for at in stage)])
    kept = [tuple(stage.get(at) for stage in found) for at in range(len(wholes))]
    return kept if all(any(place is not None for place in each) for each in kept) else None


def _stage(wholes: Sequence[Any], own: Sequence[Any], begin: int) -> dict[int, int] | None:
    """Return the places of these parameters of a stage, by the place in the whole, from which on they follow one another."""
    found: dict[int, int] = {}
    for place, each in enumerate(own):
        if begin < len(wholes) and _same(each, wholes[begin]):
            found[begin] = place
            begin += 1
            continue
        earlier = next((at for at in range(begin) if at not in found and _same(each, wholes[at])), None)
        if earlier is None:
            return None
        found[earlier] = place
    return found


def _same(one: Any, other: Any) -> bool:
    return one.shape == other.shape and torch.equal(one, other)


def _candidates(held: Sequence[Any], known: Sequence[Layout]) -> Iterator[tuple[int, ...]]:
    """Yield sets of ranks that may hold the whole together: all, one for each different part, and those of other parameters."""
    yield tuple(range(len(held)))
    distinct: list[int] = []
    for rank, each in enumerate(held):
        if not any(each.shape == held[one].shape and torch.equal(each, held[one]) for one in distinct):
            distinct.append(rank)
    yield tuple(distinct)
    yield from (layout.ranks for layout in known if layout.dim is not None)


def _ways(whole: Any, parts: Sequence[Any]) -> Iterator[tuple[int, int, int | None]]:
    """
    Yield the dimensions along which parts have the size of the whole together, each with possible numbers of fused matrices.

    With some padding at the end, the last part of the tuple is the size of the whole.
    """
    for dim in range(whole.dim()):
        sizes = [part.shape[dim] for part in parts if part.dim() == whole.dim()]
        others = {(*part.shape[:dim], *part.shape[dim + 1 :]) for part in parts}
        if len(sizes) < len(parts) or others != {(*whole.shape[:dim], *whole.shape[dim + 1 :])}:
            continue
        size, padding = whole.shape[dim], sum(sizes) - whole.shape[dim]
        if padding == 0:
            fused = (groups for groups in range(1, _MOST_GROUPS) if all(each % groups == 0 for each in sizes))
            yield from ((dim, groups, None) for groups in fused)
            yield dim, max(sizes), None  # dealt out one by one, such as the rows of a table
        elif 0 < padding <= _MAX_PADDING * size and len(set(sizes)) == 1:
            yield dim, 1, size


def _concatenated(parts: Sequence[Any], dim: int, groups: int, size: int | None) -> Any:
    chunks = [part.chunk(groups, dim) for part in parts]
    joined = torch.cat([chunk[group] for group in range(groups) for chunk in chunks if group < len(chunk)], dim)
    return joined if size is None else joined.narrow(dim, 0, size).contiguous()
