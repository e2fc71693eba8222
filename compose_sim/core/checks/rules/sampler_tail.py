"""Judge whether every sample is used once per epoch."""

from __future__ import annotations

from collections.abc import Mapping

from compose_sim.core.checks import Case, Result, not_applicable, passed, warned
from compose_sim.core.checks.evidence.epochs import Epoch, Loader, groups, indices_of, loaders
from compose_sim.core.units import format_count
from compose_sim.node.records.process_groups import Collective

QUESTION = "Is every sample used once per epoch?"

_FIX_DOUBLED_TRAINING = (
    "Make the length divisible by the number of ranks, or use DistributedSampler(…, drop_last=True), which leaves out different "
    "samples in every epoch."
)
_FIX_DOUBLED_EVALUATION = (
    "A metric over these samples counts some twice: evaluate with a sampler that does not pad, such as range(rank, len(data), world), "
    "or gather the predictions and cut them at len(data)."
)
_FIX_DROPPED_TRAINING = "Shuffle, so that different samples are left out in every epoch, or use drop_last=False."
_FIX_DROPPED_EVALUATION = (
    "The metric is not that of the whole set: evaluate with drop_last=False in the loader and the sampler."
)


def judge(case: Case) -> Result:
    """Combine what all ranks of a group drew in an epoch that they finished, and compare it with the data set."""
    looked_at = 0
    for by_rank in loaders(case):
        for group in groups(case, by_rank):
            members = {rank: loader for rank, loader in by_rank.items() if rank in group}
            if len(members) < max(2, len(group)) or len({loader.data for loader in members.values()}) > 1:
                continue
            for number in sorted(set.intersection(*(set(loader.epochs) for loader in members.values()))):
                drawn = _drawn({rank: loader.epochs[number] for rank, loader in members.items()})
                result = _judge_epoch(case, members, number, drawn) if drawn is not None else None
                if result is not None and result.status != "passed":
                    return result
                looked_at += result is not None
    if looked_at:
        return passed("every sample was used once per epoch, or left out by a drop_last that the script asked for")
    return not_applicable("no loader that divides one data set by index finished an epoch")


def _drawn(epochs: Mapping[int, Epoch]) -> dict[int, list[int]] | None:
    """Return the indices that each rank drew; None if an epoch was not finished, or not recorded as a whole."""
    drawn: dict[int, list[int]] = {}
    for rank, epoch in epochs.items():
        indices = indices_of(epoch.batches)
        if not epoch.exhausted or indices is None or len(epoch.batches) < epoch.fetched:
            return None
        drawn[rank] = indices
    return drawn


def _judge_epoch(case: Case, members: dict[int, Loader], number: int, drawn: dict[int, list[int]]) -> Result | None:
    """Return None if the data set is not divided: if ranks see everything, or a chosen part, or draw with replacement."""
    loader = next(iter(members.values()))
    info, length = loader.info, loader.info.length
    if not length:
        return None
    whole = info.threshold is None
    sizes = sum(each.epochs[number].last.drawn for each in members.values())
    together = {index for indices in drawn.values() for index in indices}
    doubled = sum(map(len, drawn.values())) - len(together) if whole else max(0, sizes - length)
    dropped = length - len(together) if whole else max(0, length - sizes)
    tail = len(members) * max(1, info.batch_size or 1)
    repeats = sum(len(indices) - len(set(indices)) for indices in drawn.values())
    if doubled >= tail or dropped >= tail or 2 * (doubled + dropped) >= length or repeats > len(members):
        return None
    if doubled and dropped:
        return None  # a tail is padded or left out; ranks with other orders repeat and miss samples
    if info.sampling.replacement:
        return None
    trained = any(each.epochs[number].trained for each in members.values())
    if doubled and (trained or not _is_gathered(case, members, number)):
        replicas = info.sampling.num_replicas
        is_padding = replicas and doubled == -length % replicas
        why = f" to divide {length} evenly among {replicas} ranks" if is_padding else ""
        fix = _FIX_DOUBLED_TRAINING if trained else _FIX_DOUBLED_EVALUATION
        return _result(loader, number, f"{format_count(doubled, 'sample')} of {length} used twice", why, fix)
    if dropped and not (trained and _is_asked_for(loader)):
        fix = _FIX_DROPPED_TRAINING if trained else _FIX_DROPPED_EVALUATION
        return _result(loader, number, f"{format_count(dropped, 'sample')} of {length} left out", "", fix)
    return passed("")


def _is_gathered(case: Case, members: dict[int, Loader], number: int) -> bool:
    """Return whether results are gathered after the epoch: then the script can drop those of repeated samples."""
    for rank, loader in members.items():
        batches = loader.epochs[number].batches
        begun = batches[0].index if batches else 0
        if any(each.index > begun and "gather" in each.op for each in case.observed.ranks[rank].of(Collective)):
            return True
    return False


def _is_asked_for(loader: Loader) -> bool:
    """Return whether the script asked for different samples to be left out in every epoch."""
    in_order = all(epoch.last.ascending for epoch in loader.epochs.values())
    return bool(loader.info.drop_last or loader.info.sampling.drop_last) and not in_order


def _result(loader: Loader, number: int, what: str, why: str, fix: str) -> Result:
    return warned(f"{what} in epoch {number} of {loader}{why}", fix=fix, at=loader.place)
