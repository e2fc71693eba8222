"""
Judge whether each rank sees different samples.

Samples are compared by index if the ranks' data sets are the same, else by content. A DistributedSampler divides wrongly if an index is
another sample on each rank, or if its settings differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from compose_sim.core.checks import (
    FAILED,
    SEVERAL_RANKS,
    Case,
    Result,
    check,
    failed,
    not_applicable,
    passed,
    ranks_text,
    warned,
)
from compose_sim.core.checks.common_draws import Pair
from compose_sim.core.checks.common_samples import compare_indices, overlap, own_orders, read_twice
from compose_sim.core.checks.drifting_copies import drifting_copy
from compose_sim.core.checks.epochs import (
    Epoch,
    Loader,
    drew_random,
    groups,
    have_parts,
    indices_of,
    local_rank_twins,
    pairs,
    pairs_text,
    rows_of,
    shared_epochs,
    training_loaders,
)
from compose_sim.core.checks.replica_diff import exchanges_parts
from compose_sim.core.checks.sketches import same_gradients
from compose_sim.core.events.observations import RankObserved
from compose_sim.node.records.data import Batch, NumberedNames, TrainingForward
from compose_sim.node.records.devices_and_files import TrainerLibraries
from compose_sim.node.records.gradients import SketchedStep
from compose_sim.node.records.models import DdpModel
from compose_sim.node.records.replays import RecordedModels
from compose_sim.node.records.script import ScriptEnd

_MIN_BATCHES = 3
_FIX = "Give the loader a DistributedSampler in place of shuffle=True: `DataLoader(data, sampler=DistributedSampler(data), …)`."
_FIX_ITERABLE = "Let the data set yield every world_size-th sample: `islice(samples, rank, None, world_size)`."
_FIX_ACCELERATE = "Give the loader to `accelerator.prepare`, which divides its samples among the ranks."
_FIX_ORDER = (
    "Order and split the data the same on all ranks: sort what comes from a folder or a set, and seed every shuffle, "
    "random_split(…, generator=torch.Generator().manual_seed(0))."
)
_FIX_TWINS = "Divide by RANK and WORLD_SIZE (dist.get_rank() of dist.get_world_size()): LOCAL_RANK is 0 on every node."
_FIX_BY_HAND = (
    "Give each rank its own part of the data: data[rank::world_size]. Seed what makes samples, such as environments, by rank: "
    "`seed + dist.get_rank()`."
)
_WITHOUT_DDP = (
    "{pairs} train on the same samples; without DistributedDataParallel that may be intended, as in tensor parallelism"
)
_TWINS = "; these are the ranks with the same LOCAL_RANK, which was probably used as RANK"


@check("sampler-overlap", "Does each rank see different samples?", SEVERAL_RANKS, may_follow=("rank-confusion",))
def sampler_overlap(case: Case) -> Result:
    """Compare all pairs of ranks of a DDP group, in the same epochs of the same training loader."""
    result = _compare_samples(case)
    if result.status == FAILED:
        return result
    return _other_names(case) or result  # which may be why samples seem to differ


def _compare_samples(case: Case) -> Result:
    training = training_loaders(case)
    if not training:
        return _judge_by_hand(case, pairs(case), same_gradients(case.observed))
    if not case.observed.first(DdpModel) and not _synchronizes(case):
        return not_applicable(
            "the ranks do not train together: there is no DDP model, and there are hardly any collectives"
        )
    looked_at: list[CommonSamples] = []
    sliced: list[Pair] = []
    if twice := _read_twice(case):
        return twice
    for by_rank in training:
        mismatch = _other_codes(by_rank) or _other_samples(case, by_rank) or _other_subsets(case, by_rank)
        if mismatch:
            return mismatch
        decided = compare_all(case, by_rank)
        parts = [pair for pair, each in decided.items() if each.is_overlap and have_parts(case, by_rank, pair)]
        sliced = sliced or parts
        overlapping = [pair for pair, each in decided.items() if each.is_overlap and pair not in parts]
        if overlapping and _is_convincing(by_rank, overlapping, decided):
            if not case.observed.first(DdpModel) and not _fsdp_divides(case) and not _are_replicas(case, overlapping):
                return not_applicable(_WITHOUT_DDP.format(pairs=pairs_text(overlapping)))
            return _overlap(case, by_rank, overlapping, decided[overlapping[0]])
        looked_at += decided.values()
    if not looked_at:
        return not_applicable("the samples cannot be told apart, or no two ranks load from the same loader")
    if sliced:
        return passed(f"{pairs_text(sliced)} load the same batches, and each gives its models other rows of these")
    drifting = drifting_copy(case.observed)
    if drifting and not drifting.steady:
        return not_applicable(
            f"{ranks_text(drifting.ranks)} hold parts of one model, so they must see the same samples"
        )
    return passed(f"no two ranks saw the same sample in one epoch (by {looked_at[0].by})")


def _read_twice(case: Case) -> Result | None:
    """Find loaders whose workers read the same stream: each sample is given as often as there are workers."""
    for each in read_twice(case.observed):
        read, which = each.read, "all" if each.read.whole else "the first"
        return (failed if read.whole else warned)(
            f"workers {read.worker} and {each.other} of the {read.workers} of a loader on rank {read.rank} read the same samples from "
            f"an IterableDataset ({each.common} of {which} {each.of}), so these are used more than once",
            fix="Divide the stream among the workers as well: `info = torch.utils.data.get_worker_info()`, then every "
            "`world_size * info.num_workers`-th sample from `rank * info.num_workers + info.id` on.",
            at=read.at,
        )
    return None


def _is_convincing(by_rank: dict[int, Loader], overlapping: list[Pair], decided: dict[Pair, CommonSamples]) -> bool:
    """Return False if it may be padding: if an epoch is a single batch, padding is most of it for some ranks, never for all."""
    lone = all(epoch.fetched <= 1 for loader in by_rank.values() for epoch in loader.epochs.values())
    return not lone or len(overlapping) == len(decided)


def _fsdp_divides(case: Case) -> bool:
    """Return whether FSDP alone divides the work, and ranks exchange nothing else that could be parts of the same samples."""
    return any(each.divided_by_fsdp for each in case.observed.of(RecordedModels)) and not exchanges_parts(case.observed)


def _are_replicas(case: Case, overlapping: list[Pair]) -> bool:
    """Return whether all these ranks hold copies of one another's shards: ranks that share a batch in parts are never copies."""
    copies = {each.rank: each.replicas for each in case.observed.of(RecordedModels)}
    return all(one in copies.get(other, ()) for one, other in overlapping)


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
        why = f"; its samplers: {', '.join(loader.info.samplers or ('none',))}"
        library = case.observed.first(TrainerLibraries)
        fix = _FIX_ACCELERATE if library and library.names == ("accelerate",) else _FIX
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


def _other_names(case: Case) -> Result | None:
    """Find names that ranks number differently in a variable of the script, as if each had iterated over its own set."""
    numbered: dict[str, dict[int, NumberedNames]] = {}
    for rank in case.observed:
        for each in rank.of(NumberedNames):
            numbered.setdefault(each.name, {})[rank.rank] = each
    for name, by_rank in numbered.items():
        one, *others = by_rank
        other = next((rank for rank in others if by_rank[rank].codes != by_rank[one].codes), None)
        if other is not None and len({each.names for each in by_rank.values()}) == 1:
            return warned(
                f"`{name}` numbers the same names differently on ranks {one} and {other}: if models are given these numbers, each "
                "means another name on each rank",
                fix=_FIX_ORDER,
                at=by_rank[one].at,
                ranks=(one, other),
            )
    return None


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
    if (own := own_orders(case.observed)) and _synchronizes(case):
        return warned(
            f"{own.common} of {own.of} rows that {ranks_text(own.ranks)} trained on in their first pass were in the pass of another of "
            "them, and none has all rows: each rank divides an order of its own",
            fix="Draw the order with the same seed on all ranks, then take a part of it: "
            "torch.randperm(len(data), generator=torch.Generator().manual_seed(seed + epoch))[rank::world_size].",
            at=own.at,
            ranks=own.ranks,
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
    seen = (each for each in rank.of(TrainingForward) if not (each.model or each.loads))
    forwards = [each for each in seen if each.loader is None and each.rows]
    batches = [each.rows or () for each in forwards]
    drawn = sum(bool(each.loop_drew) for each in forwards[1:])
    if len(set(batches)) < 3 or 2 * drawn >= len(forwards) - 1 or any(len(set(rows)) < len(rows) for rows in batches):
        return []
    return _until_repeated(batches[1:])  # the first may be a warm-up that all ranks make


def _until_repeated(batches: list[tuple[int, ...]]) -> list[int]:
    """Return the rows of all batches, or of several before the first that mostly repeats rows: a later epoch, and no chance."""
    rows: list[int] = []
    for number, batch in enumerate(batches):
        if number >= _MIN_BATCHES and 2 * len(set(batch) & set(rows)) >= len(batch):
            break
        rows.extend(batch)
    return rows


_SLICED = 0.75


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonSamples:
    """The samples of two ranks: `common` of the `of` samples of the rank with fewer are the same, first in this epoch."""

    common: int
    of: int
    epoch: int
    by: str  # index or content

    @property
    def is_overlap(self) -> bool:
        return self.common >= 2


def compare(case: Case, left: Loader, right: Loader) -> CommonSamples | None:
    """Return what the epochs of two ranks have in common; None if that cannot be decided."""
    found = [_compare_epoch(case, left, right, *epochs) for epochs in shared_epochs(left, right)]
    decided = [each for each in found if each is not None]
    return next((each for each in decided if each.is_overlap), decided[0] if decided else None)


def compare_all(case: Case, by_rank: Mapping[int, Loader]) -> dict[Pair, CommonSamples]:
    """Return what pairs of ranks with this loader have in common, as far as it can be decided."""
    found = {pair: compare(case, by_rank[pair[0]], by_rank[pair[1]]) for pair in pairs(case, by_rank)}
    return {pair: each for pair, each in found.items() if each is not None}


def pairs_with_the_same(case: Case) -> list[Pair]:
    """Return the pairs of ranks that trained on the same samples."""
    compared = [compare_all(case, by_rank) for by_rank in training_loaders(case)]
    return [pair for each in compared for pair, common in each.items() if common.is_overlap]


def _compare_epoch(case: Case, left: Loader, right: Loader, ours: Epoch, theirs: Epoch) -> CommonSamples | None:
    if not (ours.trained or theirs.trained):
        return None
    first, second = _without_padding(ours), _without_padding(theirs)
    lone = len(first) == 1 or len(second) == 1
    indices, others = indices_of(first), indices_of(second)
    random = drew_random(case, left) or drew_random(case, right)
    by_content = _by_content(first, second)
    if left.data == right.data and indices is not None and others is not None:
        common, of = overlap(indices, others, unique=_draws_once(left, min(len(indices), len(others))))
        if common and random is not True and _contradicted(first, second):
            common = 0  # the same indices are other samples on each rank
        by, same_order = "index", indices == others
    elif by_content is not None and not (random and not by_content[0]):
        (common, of), by, same_order = by_content, "content", rows_of(first) == rows_of(second)
    else:
        return None
    if lone and common < 0.5 * of:
        common = 0  # the second round of a small data set is nothing but padding
    if common and same_order and _sliced(case, left, right, ours, theirs):
        common = 0
    if common:  # count the last batch too
        samples = [indices_of(epoch.batches) if by == "index" else rows_of(epoch.batches) for epoch in (ours, theirs)]
        common, of = _count(*(set(each or ()) for each in samples))
    return CommonSamples(common=common, of=of, epoch=ours.number, by=by)


def _count(ours: Set[int], theirs: Set[int]) -> tuple[int, int]:
    return len(ours & theirs), min(len(ours), len(theirs))


def _draws_once(loader: Loader, count: int) -> bool:
    """Return whether a sampler that has repeated nothing in `count` draws never repeats anything."""
    sampling, length = loader.info.sampling, loader.info.length or 0
    if sampling.replacement:
        return False
    known = {"DistributedSampler", "SequentialSampler"} & set(loader.info.samplers)
    # With replacement, about three samples would have been repeated by now.
    return sampling.replacement is not None or bool(known) or count * count >= 6 * length


def _without_padding(epoch: Epoch) -> list[Batch]:
    """Leave out an epoch's last batch, which may repeat samples so that all ranks have equally many."""
    return epoch.batches[:-1] if epoch.exhausted and len(epoch.batches) > 1 else epoch.batches


def _by_content(first: Sequence[Batch], second: Sequence[Batch]) -> tuple[int, int] | None:
    shapes = {batch.shape for batch in (*first, *second) if batch.rows}
    ours, theirs = rows_of(first), rows_of(second)
    if not ours or not theirs or (len(shapes) > 1 and not set(ours) & set(theirs)):
        return None
    return overlap(ours, theirs)


def _contradicted(first: Sequence[Batch], second: Sequence[Batch]) -> bool:
    """Return whether most samples with the same index have other contents."""
    ours, theirs = _by_index(first), _by_index(second)
    comparable = [index for index in ours.keys() & theirs.keys() if ours[index][1] == theirs[index][1]]
    equal = sum(ours[index] == theirs[index] for index in comparable)
    return bool(comparable) and equal < len(comparable) / 2


def _by_index(batches: Sequence[Batch]) -> dict[int, tuple[int, int | None]]:
    return {
        index: (row, batch.shape)
        for batch in batches
        if batch.rows and batch.indices and len(batch.rows) == len(batch.indices)
        for index, row in zip(batch.indices, batch.rows, strict=True)
    }


def _sliced(case: Case, left: Loader, right: Loader, ours: Epoch, theirs: Epoch) -> bool:
    """Return whether both load the same batches, but each trains on a part of them only."""
    mine, others = _fed(case, left, ours), _fed(case, right, theirs)
    if not mine or not others:
        return False
    common, of = overlap([row for rows in mine for row in rows], [row for rows in others for row in rows])
    if common > of / 2:
        return False
    batches = [len(batch.rows) for batch in ours.batches if batch.rows]
    given = sum(map(len, mine)) / len(mine)
    fewer_rows = bool(batches) and given < _SLICED * sum(batches) / len(batches)
    return fewer_rows or ours.forwards < _SLICED * (ours.fetched - 1)


def _fed(case: Case, loader: Loader, epoch: Epoch) -> list[tuple[int, ...]]:
    """Return the rows of each batch that the model was given in this epoch."""
    forwards = case.observed.ranks[loader.rank].of(TrainingForward)
    return [
        each.rows for each in forwards if each.rows and (each.loader, each.epoch) == (loader.info.loader, epoch.number)
    ]


_FIX_SHARE = (
    "Leave out `num_replicas` and `rank`: DistributedSampler(data) takes them from the process group; or pass dist.get_world_size() "
    "and dist.get_rank()."
)
_FIX_SEED = (
    "Pass the same `seed` on every rank: a constant, or a number that rank 0 broadcasts; not one from the clock, the process id or "
    "the rank. The sampler itself gives each rank another part."
)
_FIX_EPOCH = "Call `sampler.set_epoch(epoch)` with the same number on every rank."


def _other_samples(case: Case, by_rank: Mapping[int, Loader]) -> Result | None:
    """Find two ranks on which an index is another sample; None also if that cannot be decided."""
    ranks = [rank for rank, loader in sorted(by_rank.items()) if _is_divided(loader)]
    rows = {rank: _rows(by_rank[rank]) for rank in ranks if drew_random(case, by_rank[rank]) is not True}
    for left, right in pairs(case, by_rank):
        if left in rows and right in rows:
            ours, theirs = by_rank[left].info, by_rank[right].info
            alike = (ours.data, ours.length) == (theirs.data, theirs.length)
            replicas = ours.sampling.num_replicas or 1
            found = compare_indices(rows[left], rows[right], replicas) if alike else None
            if found:
                return _divided_wrongly(by_rank[left], right, *found)
    return None


def _other_subsets(case: Case, by_rank: Mapping[int, Loader]) -> Result | None:
    """Find two ranks that divide different subsets of one data set, which overlap, among themselves."""
    for left, right in pairs(case, by_rank):
        loader = by_rank[left]
        if not (_is_divided(loader) and loader.info.subset and by_rank[right].info.subset):
            continue
        (base, ours, *some), (its_base, theirs, *its_some) = loader.info.subset, by_rank[right].info.subset
        if base == its_base and ours != theirs and set(some) & set(its_some):
            return failed(
                f"the Subset of {loader} has other indices on rank {left} than on rank {right}, and a DistributedSampler divides it: "
                "samples are used twice or never, and one rank may train on what another evaluates",
                fix=_FIX_ORDER,
                at=loader.place,
                ranks=(left, right),
            )
    return None


def _divided_wrongly(loader: Loader, other: int, moved: tuple[int, int] | None, count: int) -> Result:
    """Report that ranks divide indices, which are other samples on each rank; with `moved`, the indices of one of them on both."""
    if moved is None:
        return warned(
            f"{loader} divides its indices among {loader.info.sampling.num_replicas} ranks, but none of {count} indices "
            f"that ranks {loader.rank} and {other} both had is the same sample: each rank divides data of which only it knows",
            fix="Divide the data once: give every rank all of it and a DistributedSampler, or each rank a part and no such sampler.",
            at=loader.place,
            ranks=(loader.rank, other),
        )
    return failed(
        f"an index of {loader} is another sample on each rank: the sample with index {moved[0]} on rank {loader.rank} has index "
        f"{moved[1]} on rank {other}, as have {count - 1} others, so samples are used twice or never",
        fix=_FIX_ORDER,
        at=loader.place,
        ranks=(loader.rank, other),
    )


def _is_divided(loader: Loader) -> bool:
    replicas = loader.info.sampling.num_replicas
    return "DistributedSampler" in loader.info.samplers and replicas is not None and replicas > 1


def _rows(loader: Loader) -> dict[int, set[int]]:
    """Return the contents that each index had."""
    found: dict[int, set[int]] = {}
    for epoch in loader.epochs.values():
        for batch in epoch.batches:
            if batch.rows and batch.indices and len(batch.rows) == len(batch.indices):
                for index, row in zip(batch.indices, batch.rows, strict=True):
                    found.setdefault(index, set()).add(row)
    return found


def wrong_setting(loaders: Sequence[Loader], size: int) -> tuple[str, str]:
    """Return the evidence, to follow a sentence, and the fix, for two ranks of a group of `size`; empty without such a sampler."""
    if any("DistributedSampler" not in loader.info.samplers for loader in loaders):
        return "", ""
    first, second = (loader.info.sampling for loader in loaders)
    ranks = [loader.rank for loader in loaders]
    if first.num_replicas is not None and first.num_replicas != size:
        of = f"num_replicas={first.num_replicas}, but {size} ranks train together"
        both = f" (ranks {ranks[0]} and {ranks[1]} both have rank={first.rank})" if first.rank == second.rank else ""
        return f"; its sampler has {of}{both}", _FIX_SHARE
    if first.rank is not None and first.rank == second.rank:
        return f"; its sampler has rank={first.rank} on both", _FIX_SHARE
    if first.shuffle and first.seed != second.seed:
        return (
            f"; its sampler has seed={first.seed} on rank {ranks[0]} and seed={second.seed} on rank {ranks[1]}",
            _FIX_SEED,
        )
    marks = [{number: epoch.marks for number, epoch in loader.epochs.items()} for loader in loaders]
    for number in sorted(marks[0].keys() & marks[1].keys()):
        if first.shuffle and marks[0][number] != marks[1][number]:
            return f"; set_epoch got other numbers on rank {ranks[0]} than on rank {ranks[1]}", _FIX_EPOCH
    return "", _FIX_SHARE
