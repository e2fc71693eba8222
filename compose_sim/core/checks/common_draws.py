"""Find random numbers that two ranks draw alike, by the states of the generators before the draws."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from compose_sim.core.events.observations import Observed, RankObserved
from compose_sim.node.records.data import GeneratorDraw, LoaderInfo, RandomDraws, TrainingForward
from compose_sim.node.records.models import OptimizerStep
from compose_sim.node.records.process_groups import Collective
from compose_sim.node.records.record import Place

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


def in_fetches(rank: RankObserved, info: LoaderInfo) -> Draws:
    """Return the states in which the samples of a batch are fetched, if at least as many numbers are drawn."""
    draws: Draws = {}
    for each in rank.of(RandomDraws):
        if each.loader != info.loader or (info.iterable and not each.fetch):
            continue  # the first fetch of an iterable data set begins the epoch: it may draw an order for all ranks
        for name, (state, count) in each.states.items():
            if info.iterable and not name.startswith(("torch", "numpy")):
                continue  # buffers that shuffle
            if count >= each.size - 1:
                draws[(each.epoch, each.worker, each.fetch, name)] = state
    return draws


def take_parts(observed: Observed, infos: Mapping[int, LoaderInfo]) -> bool:
    """Return whether two ranks fetch with the same random numbers, and give their models other rows of that in each pass."""
    pair = min(infos), max(infos)
    left, right = (
        {
            (each.model, each.forward): each
            for each in observed.ranks[rank].of(TrainingForward)
            if each.rows and not each.loads
        }
        for rank in pair
    )
    passes = [(left[key], right[key]) for key in left if key in right]
    are_apart = all(
        one.loader is not None
        and not (one.loop_drew or other.loop_drew)
        and set(one.rows or ()).isdisjoint(other.rows or ())
        for one, other in passes
    )
    draws = {rank: in_fetches(observed.ranks[rank], info) for rank, info in infos.items()}
    return len(passes) >= MIN_DRAWS and are_apart and all(one == other for one, other in both(draws, pair))


def drawn_inputs(observed: Observed) -> dict[int, Draws]:
    """Return hashes of what the loop draws for a model, such as a generator's noise, if another one is given each rank's samples."""
    passes: dict[int, dict[int, list[TrainingForward]]] = {}  # of a model, by number
    for each in observed.of(TrainingForward):
        if each.rows and each.loader is None and not each.loads:
            passes.setdefault(each.model, {}).setdefault(each.forward, []).append(each)
    samples = [
        len(each.rows or ())
        for by_number in passes.values()
        if all(len({each.rows for each in of_ranks}) == len(of_ranks) > 1 for of_ranks in by_number.values())
        for of_ranks in by_number.values()
        for each in of_ranks
    ]
    draws: dict[int, Draws] = {}
    for model, by_number in passes.items() if samples else ():
        given = [each for of_ranks in by_number.values() for each in of_ranks]
        is_new = len({(each.rank, each.rows) for each in given}) == len(given)
        # One row may be a task that all ranks share. A critic is given real and drawn samples together.
        are_many = 2 * min(len(each.rows or ()) for each in given) >= min(samples)
        if is_new and are_many and all(each.loop_drew for each in given if each.loop_drew is not None):
            for each in given:
                draws.setdefault(each.rank, {})[model, each.forward] = hash(each.rows)
    return draws


def _alike_after_load(observed: Observed, pairs: Sequence[Pair]) -> list[Pair]:
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


@dataclass(frozen=True, slots=True)
class OneRanksState:
    """Pairs of ranks that drew other numbers, and the same ones once each went on from a state that it had loaded."""

    pairs: list[Pair]
    at: Place | None = None  # where they draw, and where they loaded; None if that was in forward passes
    loaded: Place | None = None


def from_one_state(observed: Observed, pairs: Sequence[Pair]) -> OneRanksState | None:
    """Find pairs of ranks that draw alike since both loaded the state of one generator."""
    line = _line_from_one_state(observed)
    alike = [] if line else _alike_after_load(observed, pairs)
    return line or (OneRanksState(alike) if alike else None)


def _line_from_one_state(observed: Observed) -> OneRanksState | None:
    """Return the first line in which the script's own code draws so."""
    steps = sum(1 for _ in observed.of(OptimizerStep))
    if 0 < steps <= sum(each.op.startswith("broadcast") for each in observed.of(Collective)):
        return None  # what one rank draws may be sent to all in each step
    draws: dict[Place, dict[int, tuple[dict[Any, str], dict[Any, str]]]] = {}  # by line and rank: before and after
    origins: dict[Place, Place] = {}
    for rank in observed:
        counts: Counter[tuple[Place, int]] = Counter()
        for each in rank.of(GeneratorDraw):
            if each.at is None:
                continue
            before, after = draws.setdefault(each.at, {}).setdefault(each.rank, ({}, {}))
            of = after if each.loaded else before
            of[each.steps, counts[each.at, each.steps]] = each.state
            counts[each.at, each.steps] += 1
            if each.loaded:
                origins.setdefault(each.at, each.loaded)
    for at, loaded in origins.items():
        by_rank = draws[at]
        pairs = [pair for pair in combinations(sorted(by_rank), 2) if _became_alike(*(by_rank[rank] for rank in pair))]
        if pairs:
            return OneRanksState(pairs, at, loaded)
    return None


def _became_alike(left: tuple[dict[Any, str], dict[Any, str]], right: tuple[dict[Any, str], dict[Any, str]]) -> bool:
    """Return whether two ranks drew from other states before, and from the same ones after, in two steps or more of each."""
    before, after = (
        [(one[key], other[key], key[0]) for key in one if key in other] for one, other in zip(left, right, strict=True)
    )
    enough = all(len({step for _, _, step in part}) >= MIN_DRAWS for part in (before, after))
    return enough and all(one != other for one, other, _ in before) and all(one == other for one, other, _ in after)


def _state(each: TrainingForward, *, forward: bool) -> int | None:
    drew, state = (each.drew, each.state) if forward else (each.loop_drew, each.loop)
    # All ranks may have to make a single decision alike.
    return state if (drew or 0) >= max(_MIN_NUMBERS, len(each.rows or ())) else None
