"""Judge whether each rank draws different random numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compose_sim.core.checks import Case, Result, not_applicable, passed, warned
from compose_sim.core.checks.evidence.epochs import Loader, Pair, local_rank_twins, pairs, pairs_text, training_loaders
from compose_sim.node.records.data import RandomDraws, TrainingForward
from compose_sim.node.records.record import Place

QUESTION = "Does each rank draw its own random numbers?"

_LEAST = 2  # draws that must be the same: one may be the same by chance
_FEW = 4
_FIX = (
    "Once the model is built, seed each rank differently: torch.manual_seed(seed + dist.get_rank()), and likewise random and numpy if "
    "they are used. DDP itself makes the models equal."
)
_Draws = dict[Any, int]  # a hash of a generator's state, by when it was drawn from, and which one


def judge(case: Case) -> Result:
    """Compare the states of random generators before draws for samples, on all pairs of ranks of a DDP group."""
    together = pairs(case)
    if not together:
        return not_applicable("there is only one rank")
    purposes: list[tuple[str, dict[int, _Draws], list[Pair], Place | None]] = [
        ("the model's forward (dropout)", _in_forward(case), together, None),
        ("what is done to a batch before the model's forward", _in_loop(case), together, None),
    ]
    for by_rank in training_loaders(case):
        draws = {rank: _in_fetches(case, loader) for rank, loader in by_rank.items()}
        first = next(iter(by_rank.values()))
        purposes.append((f"{first} (augmentation)", draws, pairs(case, by_rank), first.place))
    compared = 0
    for purpose, draws, of, place in purposes:
        comparable = [pair for pair in of if len(_both(draws, pair)) >= _LEAST]
        same = [pair for pair in comparable if all(left == right for left, right in _both(draws, pair))]
        compared += len(comparable)
        if same:
            detail = (
                f"{pairs_text(same)} drew the same random numbers in {purpose}: their generators were in the same state before each "
                f"of {len(_both(draws, same[0]))} draws"
            )
            if local_rank_twins(case, same):
                detail += "; these are the ranks with the same LOCAL_RANK, which was probably the seed"
            return warned(detail, fix=_FIX, at=place, ranks=sorted({rank for pair in same for rank in pair}))
    if not compared:
        return not_applicable("no random numbers were seen to be drawn for samples or in a model")
    return passed("each rank drew its own random numbers")


def _both(draws: Mapping[int, _Draws], pair: Pair) -> list[tuple[int, int]]:
    left, right = draws.get(pair[0], {}), draws.get(pair[1], {})
    return [(left[key], right[key]) for key in left if key in right]


def _is_many(drew: int | None, forward: TrainingForward) -> bool:
    """Return whether this is more than a single decision, which all ranks may have to make alike."""
    return (drew or 0) >= max(_FEW, len(forward.rows or ()))


def _in_forward(case: Case) -> dict[int, _Draws]:
    return {
        rank.rank: {
            (each.model, each.ranks, each.forward): each.state
            for each in rank.of(TrainingForward)
            if _is_many(each.drew, each)
        }
        for rank in case.observed
    }


def _in_loop(case: Case) -> dict[int, _Draws]:
    """Return the states between taking a batch and giving it to the model."""
    return {
        rank.rank: {
            (each.model, each.ranks, each.forward): each.loop
            for each in rank.of(TrainingForward)
            if each.loader is not None and each.loop is not None and _is_many(each.loop_drew, each)
        }
        for rank in case.observed
    }


def _in_fetches(case: Case, loader: Loader) -> _Draws:
    draws: _Draws = {}
    iterable = loader.info.iterable
    for each in case.observed.ranks[loader.rank].of(RandomDraws):
        if each.loader != loader.info.loader or (iterable and not each.fetch):
            continue  # the first fetch of an iterable data set begins the epoch: it may draw an order for all ranks
        for name, (state, count) in each.states.items():
            if iterable and not name.startswith(("torch", "numpy")):
                continue  # buffers that shuffle
            if count >= each.size - 1:
                draws[(each.epoch, each.worker, each.fetch, name)] = state
    return draws
