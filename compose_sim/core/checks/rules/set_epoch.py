"""Does the order of samples change from epoch to epoch?"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from compose_sim.core.checks import Case, Result, failed, not_applicable, passed
from compose_sim.core.checks.evidence.epochs import Epoch, Loader, loaders, named
from compose_sim.core.events.observations import Observation

QUESTION = "Does the order of samples change from epoch to epoch?"

_LEAST = 8  # samples of a rank: fewer may come in the same order by chance
_FIX = "Call {it}.set_epoch(epoch) at the beginning of every epoch, before `for batch in loader`: it seeds the order."


def judge(case: Case) -> Result:
    """Compare the orders of consecutive epochs of each training loader on each rank."""
    compared = shuffled = 0
    for by_rank in loaders(case):
        for loader in by_rank.values():
            epochs = [loader.epochs[number] for number in sorted(loader.epochs) if loader.epochs[number].trained]
            steps = list(case.observed.ranks[loader.rank].of("step"))
            for before, after in pairwise(epochs):
                if not _comparable(loader, before, after) or _begins_anew(steps, before, after):
                    continue
                compared += 1
                shuffled += not before.facts.get("ascending")
                if _is_repeated(loader, before, after):
                    return _repeated(by_rank, loader, before, after)
    if not compared:
        return not_applicable("no loader was trained from for two epochs whose order is known")
    if not shuffled:
        return passed("samples are not shuffled")
    return passed("each epoch had an order of its own")


def _comparable(loader: Loader, before: Epoch, after: Epoch) -> bool:
    if loader.facts["iterable"]:
        rows = [_rows(each) for each in (before, after)]
        return all(len(each) >= _LEAST for each in rows)
    return all(
        (each.facts.get("drawn") or 0) >= _LEAST and each.facts.get("order") is not None for each in (before, after)
    )


def _begins_anew(steps: Sequence[Observation], before: Epoch, after: Epoch) -> bool:
    """Whether another training with optimizers of its own has begun, as in a search for a learning rate: it may begin at epoch 0."""
    if not (before.batches and after.batches):
        return False
    first, later = (
        next((each["optimizer"] for each in steps if each.index > epoch.batches[0].index), None)
        for epoch in (before, after)
    )
    return first is not None and later is not None and later > first


def _is_repeated(loader: Loader, before: Epoch, after: Epoch) -> bool:
    """Whether an order that is meant to change did not."""
    facts = loader.facts
    if facts["iterable"]:  # nobody can see whether it shuffles; but what it has set_epoch for, and is never told?
        told = before.facts.get("marks") != after.facts.get("marks") or not after.facts.get("marks")
        return facts["data_set_epoch"] and facts["data_shuffles"] and not told and _rows(before) == _rows(after)
    if before.facts.get("ascending") or after.facts.get("ascending"):
        return False
    sampling = facts["sampling"] or {}
    meant = facts["set_epoch"] or sampling.get("random") or sampling.get("shuffle") or "seed" in sampling
    return bool(meant) and _order(before) == _order(after)


def _order(epoch: Epoch) -> tuple[object, object]:
    return epoch.facts.get("drawn"), epoch.facts.get("order")


def _rows(epoch: Epoch) -> list[int]:
    return [row for batch in epoch.batches for row in batch["rows"] or ()]


def _repeated(by_rank: dict[int, Loader], loader: Loader, before: Epoch, after: Epoch) -> Result:
    facts = loader.facts
    count = f"the same {after.facts['drawn']} samples" if after.facts.get("drawn") else "the same samples"
    detail = f"epochs {before.number} and {after.number} of {named(loader)} drew {count} in the same order"
    if facts["set_epoch"] or facts["data_set_epoch"]:
        it = "sampler" if facts["set_epoch"] else "data_set"
        names = [name for name in facts["samplers"] or () if "Batch" not in name] or facts["samplers"] or ["sampler"]
        detail += f"; the epoch of its {names[-1] if facts['set_epoch'] else facts['data']} did not change"
        fix = _FIX.format(it=it)
    else:
        fix = "Seed the sampler's order with seed + epoch, which a set_epoch(epoch) of its own tells it before every epoch."
    file, line = loader.place
    return failed(detail, fix=fix, file=file, line=line, ranks=tuple(sorted(by_rank)))
