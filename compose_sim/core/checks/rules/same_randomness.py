"""Does each rank draw random numbers of its own?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compose_sim.core.checks import Case, Result, not_applicable, passed, warned
from compose_sim.core.checks.evidence.epochs import Loader, Pair, in_words, loaders, local_rank_twins, named, pairs

QUESTION = "Does each rank draw random numbers of its own?"

_LEAST = 2  # draws that must be the same: one alone may be
_FEW = 4
_FIX = (
    "Seed each rank with a number of its own once the model is built, torch.manual_seed(seed + dist.get_rank()), and random and numpy "
    "likewise where they are used; DDP itself makes the models equal."
)
_Draws = dict[Any, Any]  # the state of a generator, by when and from which one was drawn


def judge(case: Case) -> Result:
    """Compare the states of random generators before draws that are made for samples, on all two ranks of a DDP group."""
    together = pairs(case)
    if not together:
        return not_applicable("there is one rank only")
    whose: dict[str, list[Pair]] = {}
    kinds: dict[str, dict[int, _Draws]] = {"the model's forward (dropout)": _in_forward(case)}
    kinds["what is done to a batch before the model's forward"] = _in_loop(case)
    places: dict[str, tuple[str | None, int | None]] = {}
    for by_rank in loaders(case):
        if any(loader.trained for loader in by_rank.values()):
            name = f"{named(next(iter(by_rank.values())))} (augmentation)"
            kinds[name] = {rank: _in_fetches(case, loader) for rank, loader in by_rank.items()}
            whose[name] = pairs(case, by_rank)
            places[name] = next(iter(by_rank.values())).place
    compared = 0
    for name, draws in kinds.items():
        told = [pair for pair in whose.get(name, together) if len(_both(draws, pair)) >= _LEAST]
        same = [pair for pair in told if all(left == right for left, right in _both(draws, pair))]
        compared += len(told)
        if same:
            detail = f"{in_words(same)} drew the same random numbers in {name}: equal generator states before each of "
            detail += f"{len(_both(draws, same[0]))} draws"
            if local_rank_twins(case, same):
                detail += "; these are the ranks with one LOCAL_RANK, by which they were probably seeded"
            file, line = places.get(name, (None, None))
            ranks = tuple(sorted({rank for pair in same for rank in pair}))
            return warned(detail, fix=_FIX, file=file, line=line, ranks=ranks)
    if not compared:
        return not_applicable("no random numbers were seen to be drawn for samples or in a model")
    return passed("ranks drew random numbers of their own")


def _both(draws: Mapping[int, _Draws], pair: Pair) -> list[tuple[Any, Any]]:
    left, right = draws.get(pair[0], {}), draws.get(pair[1], {})
    return [(left[key], right[key]) for key in left if key in right]


def _in_forward(case: Case) -> dict[int, _Draws]:
    """Few numbers are no dropout, but a decision that all ranks may have to take alike."""
    return {
        rank.rank: {
            (each["model"], repr(each["ranks"]), each["forward"]): each["state"]
            for each in rank.of("fed")
            if (each["drew"] or 0) >= max(_FEW, len(each["rows"] or ()))
        }
        for rank in case.observed
    }


def _in_loop(case: Case) -> dict[int, _Draws]:
    """Between taking a batch and giving it to the model."""
    return {
        rank.rank: {
            (each["model"], repr(each["ranks"]), each["forward"]): each["loop"]
            for each in rank.of("fed")
            if each["loader"] is not None and (each["loop_drew"] or 0) >= max(_FEW, len(each["rows"] or ()))
        }
        for rank in case.observed
    }


def _in_fetches(case: Case, loader: Loader) -> _Draws:
    draws: _Draws = {}
    iterable = loader.facts["iterable"]
    for each in case.observed.ranks[loader.rank].of("drawn"):
        if each["loader"] != loader.facts["loader"] or (iterable and not each["fetch"]):
            continue  # an iterable data set's first fetch begins its epoch: what it draws may be an order for all ranks
        for name, (state, count) in (each["states"] or {}).items():
            if iterable and not name.startswith(("torch", "numpy")):
                continue  # buffers that shuffle
            if count >= (each["size"] or 1) - 1:
                draws[(each["epoch"], each["worker"], each["fetch"], name)] = state
    return draws
