"""Judge whether each rank sees different samples."""

from __future__ import annotations

from compose_sim.core.checks import Case, Result, failed, not_applicable, passed, warned
from compose_sim.core.checks.evidence.epochs import (
    Loader,
    Pair,
    groups,
    local_rank_twins,
    pairs,
    pairs_text,
    training_loaders,
)
from compose_sim.core.checks.evidence.gradient_sums import same_gradients
from compose_sim.core.checks.evidence.replica_diff import exchanges_parts
from compose_sim.core.checks.evidence.same_samples import CommonSamples, compare_all, overlap
from compose_sim.core.checks.evidence.sample_identity import Mismatch, find_mismatch, wrong_setting
from compose_sim.core.checks.rules.replicated_tensors import drifting_copy
from compose_sim.core.checks.wording import ranks_text
from compose_sim.core.events.observations import RankObserved
from compose_sim.node.records.data import TrainingForward
from compose_sim.node.records.gradients import SketchedStep
from compose_sim.node.records.models import DdpModel
from compose_sim.node.records.replays import RecordedModels
from compose_sim.node.records.script import ScriptEnd

QUESTION = "Does each rank see different samples?"

_LEAST_BATCHES = 3
_FIX = "Give the loader a DistributedSampler: `DataLoader(data, sampler=DistributedSampler(data), …)`."
_FIX_ITERABLE = (
    "Let the data set yield every world_size-th sample, starting at RANK: `islice(samples, rank, None, world_size)`."
)
_FIX_ORDER = (
    "Order and split the data the same on all ranks: sort what comes from a folder or a set, and seed every shuffle, "
    "random_split(…, generator=torch.Generator().manual_seed(0))."
)
_FIX_TWICE = (
    "Divide the data once: give every rank all of it and a DistributedSampler, or each rank a part and no such sampler."
)
_FIX_TWINS = (
    "Divide by RANK (dist.get_rank()) and WORLD_SIZE (dist.get_world_size()): LOCAL_RANK starts at 0 on every node."
)
_FIX_BY_HAND = (
    "Give each rank its own part of the data: data[rank::world_size]. Seed what makes samples, such as environments, by rank: "
    "`seed + dist.get_rank()`."
)
_WITHOUT_DDP = (
    "{pairs} train on the same samples; without DistributedDataParallel that may be intended, as in tensor parallelism"
)
_TWINS = "; these are the ranks with the same LOCAL_RANK, which was probably used as RANK"


def judge(case: Case) -> Result:
    """Compare all pairs of ranks of a DDP group, in the same epochs of the same training loader."""
    if case.observed.world_size < 2:
        return not_applicable("there is only one rank")
    training = training_loaders(case)
    if not training:
        return _judge_by_hand(case, pairs(case), same_gradients(case.observed))
    if not case.observed.first(DdpModel) and not _synchronizes(case):
        return not_applicable(
            "the ranks do not train together: there is no DDP model, and there are hardly any collectives"
        )
    looked_at: list[CommonSamples] = []
    for by_rank in training:
        recoded = _other_codes(by_rank)
        if recoded:
            return recoded
        mismatch = find_mismatch(case, by_rank)
        if mismatch:
            return _other_samples(mismatch, by_rank)
        decided = compare_all(case, by_rank)
        overlapping = [pair for pair, each in decided.items() if each.is_overlap]
        if overlapping and _is_convincing(by_rank, overlapping, decided):
            if not case.observed.first(DdpModel) and not _fsdp_divides(case):
                return not_applicable(_WITHOUT_DDP.format(pairs=pairs_text(overlapping)))
            return _overlap(case, by_rank, overlapping, decided[overlapping[0]])
        looked_at += decided.values()
    if not looked_at:
        return not_applicable("the samples cannot be told apart, or no two ranks load from the same loader")
    drifting = drifting_copy(case.observed)
    if drifting:
        return not_applicable(
            f"{ranks_text(drifting.ranks)} hold parts of one model, so they must see the same samples"
        )
    return passed(f"no two ranks saw the same sample in one epoch (by {looked_at[0].by})")


def _is_convincing(by_rank: dict[int, Loader], overlapping: list[Pair], decided: dict[Pair, CommonSamples]) -> bool:
    """Return False if it may be padding: if an epoch is a single batch, padding is most of it for some ranks, never for all."""
    lone = all(epoch.fetched <= 1 for loader in by_rank.values() for epoch in loader.epochs.values())
    return not lone or len(overlapping) == len(decided)


def _fsdp_divides(case: Case) -> bool:
    """Return whether FSDP alone divides the work, and ranks exchange nothing else that could be parts of the same samples."""
    return any(each.divided_by_fsdp for each in case.observed.of(RecordedModels)) and not exchanges_parts(case.observed)


def _synchronizes(case: Case) -> bool:
    ends = (rank.last(ScriptEnd) for rank in case.observed)
    return any(end is not None and 2 * end.synchronizations >= end.steps > 0 for end in ends)


def _overlap(case: Case, by_rank: dict[int, Loader], overlapping: list[Pair], common: CommonSamples) -> Result:
    loader = by_rank[overlapping[0][0]]
    many = f"all {common.of}" if common.common == common.of else f"{common.common} of {common.of}"
    detail = f"{pairs_text(overlapping)} both saw {many} samples in epoch {common.epoch} of {loader}, by {common.by}"
    members = max((group for group in groups(case, by_rank) if set(overlapping[0]) <= set(group)), key=len)
    why, fix = wrong_setting([by_rank[rank] for rank in overlapping[0]], len(members))
    if local_rank_twins(case, overlapping):
        why, fix = _TWINS, _FIX_TWINS
    elif loader.info.iterable:
        fix = _FIX_ITERABLE
    elif not fix:
        why, fix = f"; its samplers: {', '.join(loader.info.samplers or ('none',))}", _FIX
    ranks = sorted({rank for pair in overlapping for rank in pair})
    return failed(detail + why, fix=fix, at=loader.place, ranks=ranks)


def _other_codes(by_rank: dict[int, Loader]) -> Result | None:
    """Find names, such as those of classes, that the data sets of two ranks number differently, although a sampler divides them."""
    divided = [rank for rank, loader in sorted(by_rank.items()) if "DistributedSampler" in loader.info.samplers]
    first = divided[0] if divided else 0
    for rank in divided[1:]:
        ours, theirs = by_rank[first].info, by_rank[rank].info
        for (name, names, codes), (its_name, its_names, its_codes) in zip(ours.codes, theirs.codes, strict=False):
            if (ours.data, name, names) == (theirs.data, its_name, its_names) and codes != its_codes:
                return failed(
                    f"the data set of {by_rank[first]} numbers the same names differently on ranks {first} and {rank}, in its "
                    f"attribute `{name}`: a label means another class on each rank",
                    fix=_FIX_ORDER,
                    at=by_rank[first].place,
                    ranks=(first, rank),
                )
    return None


def _other_samples(mismatch: Mismatch, by_rank: dict[int, Loader]) -> Result:
    """Report that ranks divide indices, which are other samples on each rank."""
    left, right = mismatch.ranks
    loader = by_rank[left]
    if mismatch.moved is None:
        return warned(
            f"{loader} divides its indices among {loader.info.sampling.num_replicas} ranks, but none of {mismatch.count} indices "
            f"that ranks {left} and {right} both had is the same sample: each rank divides data of which only it knows",
            fix=_FIX_TWICE,
            at=loader.place,
            ranks=mismatch.ranks,
        )
    ours, theirs = mismatch.moved
    return failed(
        f"an index of {loader} is another sample on each rank: the sample with index {ours} on rank {left} has index {theirs} on "
        f"rank {right}, as have {mismatch.count - 1} others, so samples are used twice or never",
        fix=_FIX_ORDER,
        at=loader.place,
        ranks=mismatch.ranks,
    )


def _judge_by_hand(case: Case, together: list[Pair], same: SketchedStep | None) -> Result:
    """Without a loader, compare the rows that the DDP models are given, and the gradients that ranks compute."""
    rows = {rank.rank: _given(rank) for rank in case.observed}
    known = [pair for pair in together if rows.get(pair[0]) and rows.get(pair[1])]
    overlapping = [pair for pair in known if overlap(rows[pair[0]], rows[pair[1]])[0] >= 2]
    if same and not overlapping:
        return warned(
            f"all {case.observed.world_size} ranks computed the same gradients from equal weights at each of {same.nth} steps, "
            "and reduced them: they train on the same samples, as if their environments or generators had the same seed",
            fix=_FIX_BY_HAND,
            at=same.at,
        )
    if not known:
        return not_applicable("the script trains from no DataLoader, and gives no stored samples to a DDP model")
    if not overlapping:
        return passed("no two ranks gave their DDP model the same rows")
    left, right = (set(rows[rank]) for rank in overlapping[0])
    twins = local_rank_twins(case, overlapping)
    return failed(
        f"{pairs_text(overlapping)} gave their DDP model the same rows: {len(left & right)} of {min(len(left), len(right))}"
        f"{_TWINS if twins else ''}",
        fix=_FIX_TWINS if twins else _FIX_BY_HAND,
        at=next((each.at for each in case.observed.of(TrainingForward) if each.at), None),
    )


def _given(rank: RankObserved) -> list[int]:
    """Return the rows given to the rank's first DDP model; none if they may not come from stored data."""
    forwards = [each for each in rank.of(TrainingForward) if each.loader is None and each.model == 0 and each.rows]
    batches = [each.rows or () for each in forwards]
    drawn = sum(bool(each.loop_drew) for each in forwards[1:])
    if len(set(batches)) < 3 or 2 * drawn >= len(forwards) - 1 or any(len(set(rows)) < len(rows) for rows in batches):
        return []
    return _until_repeated(batches[1:])  # the first may be a warm-up that all ranks make


def _until_repeated(batches: list[tuple[int, ...]]) -> list[int]:
    """Return the rows of all batches, or of those before the first that repeats one if they are several: later epochs repeat all."""
    rows: list[int] = []
    for number, batch in enumerate(batches):
        if number >= _LEAST_BATCHES and set(batch) & set(rows):
            break
        rows.extend(batch)
    return rows
