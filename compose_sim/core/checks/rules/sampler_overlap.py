"""Does each rank see samples of its own?"""

from __future__ import annotations

from compose_sim.core.checks import Case, Result, failed, not_applicable, passed
from compose_sim.core.checks.evidence.epochs import Loader, Pair, in_words, loaders, local_rank_twins, named, pairs
from compose_sim.core.checks.evidence.same_samples import Common, compare, overlap
from compose_sim.core.events.observations import RankObserved

QUESTION = "Does each rank see samples of its own?"

_FIX = (
    "Give the loader a DistributedSampler, DataLoader(data, sampler=DistributedSampler(data), …), with the same seed on all ranks;"
    " an iterable data set yields every world_size-th sample from RANK on."
)
_FIX_TWINS = (
    "Shard by RANK (dist.get_rank()) and WORLD_SIZE (dist.get_world_size()): LOCAL_RANK begins again on every node."
)
_FIX_BY_HAND = "Give each rank its own part of the data: data[rank::world_size]."


def judge(case: Case) -> Result:
    """Compare all two ranks of a DDP group, in the same epochs of the same training loader."""
    if case.observed.world_size < 2:
        return not_applicable("there is one rank only")
    training = [each for each in loaders(case) if any(loader.trained for loader in each.values())]
    if not training:
        return _judge_by_hand(case, pairs(case))
    if not any(case.observed.of("ddp")) and not _synchronises(case):
        return not_applicable("the ranks do not train together: no DDP model, and hardly a collective")
    looked_at: list[Common] = []
    for by_rank in training:
        both = [pair for pair in pairs(case, by_rank) if set(pair) <= by_rank.keys()]
        found = {pair: compare(case, by_rank[pair[0]], by_rank[pair[1]]) for pair in both}
        told = {pair: each for pair, each in found.items() if each is not None}
        overlapping = [pair for pair, each in told.items() if each.is_overlap]
        if overlapping and _is_convincing(by_rank, overlapping, told):
            return _overlap(case, by_rank, overlapping, told)
        looked_at += told.values()
    if not looked_at:
        return not_applicable("the samples cannot be told apart, or no two ranks load from one loader")
    return passed(f"no two ranks saw the same sample in one epoch (by {looked_at[0].by})")


def _is_convincing(by_rank: dict[int, Loader], overlapping: list[Pair], told: dict[Pair, Common]) -> bool:
    """Where an epoch is a single batch, padding is most of it for some ranks, never for all."""
    lone = all(epoch.fetched <= 1 for loader in by_rank.values() for epoch in loader.epochs.values())
    return not lone or len(overlapping) == len(told)


def _synchronises(case: Case) -> bool:
    ends = [rank.last("end") for rank in case.observed]
    return any(end is not None and 2 * (end["synchronisations"] or 0) >= (end["steps"] or 0) > 0 for end in ends)


def _overlap(case: Case, by_rank: dict[int, Loader], overlapping: list[Pair], told: dict[Pair, Common]) -> Result:
    common = told[overlapping[0]]
    loader = by_rank[overlapping[0][0]]
    many = f"all {common.of}" if common.common == common.of else f"{common.common} of {common.of}"
    detail = (
        f"{in_words(overlapping)} both saw {many} samples in epoch {common.epoch} of {named(loader)}, by {common.by}"
    )
    twins = local_rank_twins(case, overlapping)
    if twins:
        detail += "; these are the ranks with one LOCAL_RANK, which was probably used for RANK"
    elif "DistributedSampler" not in (loader.facts["samplers"] or ()) and not loader.facts["iterable"]:
        detail += f"; its samplers: {', '.join(loader.facts['samplers'] or ('none',))}"
    file, line = loader.place
    ranks = tuple(sorted({rank for pair in overlapping for rank in pair}))
    return failed(detail, fix=_FIX_TWINS if twins else _FIX, file=file, line=line, ranks=ranks)


def _judge_by_hand(case: Case, together: list[Pair]) -> Result:
    """Without a loader: compare the rows that the DDP models are given."""
    rows = {rank.rank: _given(rank) for rank in case.observed}
    told = [pair for pair in together if rows.get(pair[0]) and rows.get(pair[1])]
    if not told:
        return not_applicable("no DataLoader that the script trains from, and no stored samples given to a DDP model")
    overlapping = []
    for left, right in told:
        common, _ = overlap(rows[left] or [], rows[right] or [])
        if common >= 2:
            overlapping.append((left, right))
    if not overlapping:
        return passed("no two ranks gave their DDP model the same rows")
    twins = local_rank_twins(case, overlapping)
    detail = f"{in_words(overlapping)} gave their DDP model the same rows: {common_rows(rows, overlapping[0])}"
    if twins:
        detail += "; these are the ranks with one LOCAL_RANK, which was probably used for RANK"
    at = next((each["at"] for each in case.observed.of("fed") if each["at"]), None) or (None, None)
    return failed(detail, fix=_FIX_TWINS if twins else _FIX_BY_HAND, file=at[0], line=at[1])


def common_rows(rows: dict[int, list[int] | None], pair: Pair) -> str:
    """How many of how many."""
    left, right = (set(rows[rank] or ()) for rank in pair)
    return f"{len(left & right)} of {min(len(left), len(right))}"


def _given(rank: RankObserved) -> list[int] | None:
    """The rows given to the rank's first DDP model, where they come from data that are stored; None where they may not."""
    fed = [each for each in rank.of("fed") if each["loader"] is None and each["model"] == 0 and each["rows"]]
    drawn = sum(bool(each["loop_drew"]) for each in fed[1:])
    batches = {tuple(each["rows"]) for each in fed}
    if len(batches) < 3 or 2 * drawn >= len(fed) - 1 or any(len(set(batch)) < len(batch) for batch in batches):
        return None
    return [row for each in fed for row in each["rows"]]
