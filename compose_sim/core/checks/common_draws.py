"""Find random numbers that two ranks draw alike, by the states of the generators before the draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from compose_sim.core.events.observations import Observed
from compose_sim.node.records.data import TrainingForward

Pair = tuple[int, int]
Draws = dict[Any, int]  # a hash of a generator's state, by when it was drawn from, and which one
MIN_DRAWS = 2  # that must be the same: one may be the same by chance
_MIN_NUMBERS = 4


def both(draws: Mapping[int, Draws], pair: Pair) -> list[tuple[int, int]]:
    """Return the states of two ranks at the same draws."""
    left, right = draws.get(pair[0], {}), draws.get(pair[1], {})
    return [(left[key], right[key]) for key in left if key in right]


def in_loop(observed: Observed, *, forward: bool) -> dict[int, Draws]:
    """Return the states in which the model's forward begins, or those between taking a batch and giving it to the model."""
    return {
        rank.rank: {
            (each.model, each.ranks, each.forward): state
            for each in rank.of(TrainingForward)
            if (state := _state(each, forward=forward)) is not None
            and (forward or each.loader is not None)
            and not each.loads
        }
        for rank in observed
    }


def alike_after_load(observed: Observed, pairs: Sequence[Pair]) -> list[Pair]:
    """Return the pairs of ranks that drew other numbers, and the same ones in all passes after a generator's state was loaded."""
    draws: list[dict[int, Draws]] = [{}, {}]  # before and after
    for each in observed.of(TrainingForward):
        for forward in (True, False):
            state = _state(each, forward=forward)
            if state is not None:
                draws[each.loads > 0].setdefault(each.rank, {})[each.model, each.ranks, each.forward, forward] = state
    compared = [[both(part, pair) for part in draws] for pair in pairs]
    return [
        pair
        for pair, (before, after) in zip(pairs, compared, strict=True)
        if len(after) >= MIN_DRAWS
        and all(left == right for left, right in after)
        and before
        and all(left != right for left, right in before)
    ]


def _state(each: TrainingForward, *, forward: bool) -> int | None:
    drew, state = (each.drew, each.state) if forward else (each.loop_drew, each.loop)
    # All ranks may have to make a single decision alike.
    return state if (drew or 0) >= max(_MIN_NUMBERS, len(each.rows or ())) else None
