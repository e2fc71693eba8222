"""Is every sample used once an epoch?"""

from __future__ import annotations

from collections.abc import Mapping

from compose_sim.core.checks import Case, Result, not_applicable, passed, warned
from compose_sim.core.checks.evidence.epochs import Epoch, Loader, groups, loaders, named

QUESTION = "Is every sample used once an epoch?"


def judge(case: Case) -> Result:
    """Put together what all ranks of a group drew in an epoch that they finished, and compare it with the data set."""
    looked_at = 0
    for by_rank in loaders(case):
        for group in groups(case, by_rank):
            members = {rank: loader for rank, loader in by_rank.items() if rank in group}
            if len(members) < max(2, len(group)) or len({loader.data for loader in members.values()}) > 1:
                continue
            for number in sorted(set.intersection(*(set(loader.epochs) for loader in members.values()))):
                drawn = _drawn({rank: loader.epochs[number] for rank, loader in members.items()})
                if drawn is None:
                    continue
                result = _judge_epoch(case, members, number, drawn)
                if result is not None and result.status != "passed":
                    return result
                looked_at += result is not None
    if looked_at:
        return passed("every sample was used once an epoch, or left out by a drop_last that was asked for")
    return not_applicable("no finished epoch of a loader that shares out the samples of one data set by index")


def _drawn(epochs: Mapping[int, Epoch]) -> dict[int, list[int]] | None:
    """The indices that each rank drew; None where an epoch was not finished, or not seen whole."""
    drawn: dict[int, list[int]] = {}
    for rank, epoch in epochs.items():
        indices = epoch.indices(epoch.batches)
        if not epoch.exhausted or indices is None or len(epoch.batches) < epoch.fetched:
            return None
        drawn[rank] = indices
    return drawn


def _judge_epoch(case: Case, members: dict[int, Loader], number: int, drawn: dict[int, list[int]]) -> Result | None:
    """None where this is no sharing out: ranks that see everything, a part chosen on purpose, draws with replacement."""
    loader = next(iter(members.values()))
    length = loader.facts["length"]
    if not length:
        return None
    whole = loader.facts["threshold"] is None
    sizes = sum(int(each.epochs[number].facts.get("drawn") or 0) for each in members.values())
    together = {index for indices in drawn.values() for index in indices}
    doubled = sum(map(len, drawn.values())) - len(together)
    dropped = length - len(together) if whole else max(0, length - sizes)
    if not whole:
        doubled = max(0, sizes - length)
    tail = len(members) * max(1, loader.facts["batch_size"] or 1)
    repeats = sum(len(indices) - len(set(indices)) for indices in drawn.values())
    if doubled >= tail or dropped >= tail or 2 * (doubled + dropped) >= length or repeats > len(members):
        return None
    if (loader.facts["sampling"] or {}).get("replacement"):
        return None
    trained = any(each.epochs[number].trained for each in members.values())
    if doubled and not (not trained and _is_gathered(case, members, number)):
        return _doubled(loader, number, doubled, length, trained)
    if dropped and not (trained and _is_asked_for(loader)):
        return _dropped(loader, number, dropped, length, trained)
    return passed("")


def _is_gathered(case: Case, members: dict[int, Loader], number: int) -> bool:
    """Whether what was computed from each sample is gathered after it: the script can cut off what is doubled."""
    for rank, loader in members.items():
        begun = loader.epochs[number].batches[0].index if loader.epochs[number].batches else 0
        for each in case.observed.ranks[rank].of("collective"):
            if each.index > begun and "gather" in str(each["op"]):
                return True
    return False


def _is_asked_for(loader: Loader) -> bool:
    """Whether another few are left out in every epoch, as the script asked."""
    sampling = loader.facts["sampling"] or {}
    asked = loader.facts["drop_last"] or sampling.get("drop_last")
    in_order = all(epoch.facts.get("ascending") for epoch in loader.epochs.values())
    return bool(asked) and not in_order


def _doubled(loader: Loader, number: int, doubled: int, length: int, trained: bool) -> Result:
    world = (loader.facts["sampling"] or {}).get("num_replicas")
    cause = f", to share {length} evenly among {world} ranks" if world else ""
    detail = f"{_samples(doubled)} of {length} used twice in epoch {number} of {named(loader)}{cause}"
    if trained:
        fix = "DistributedSampler(…, drop_last=True) leaves out another few in every epoch instead; or make the length divisible."
    else:
        fix = (
            "A metric over them counts those twice: evaluate with a sampler that does not pad, such as range(rank, len(data), world),"
            " or gather the predictions and cut them at len(data)."
        )
    return _result(detail, fix, loader)


def _dropped(loader: Loader, number: int, dropped: int, length: int, trained: bool) -> Result:
    detail = f"{_samples(dropped)} of {length} left out in epoch {number} of {named(loader)}"
    if trained:
        fix = "Shuffle, so that others are left out in every epoch, or use drop_last=False."
    else:
        fix = "The metric is not that of the whole set: evaluate with drop_last=False in the loader and in the sampler."
    return _result(detail, fix, loader)


def _samples(count: int) -> str:
    return f"{count} sample{'s' if count > 1 else ''}"


def _result(detail: str, fix: str, loader: Loader) -> Result:
    file, line = loader.place
    return warned(detail, fix=fix, file=file, line=line)
