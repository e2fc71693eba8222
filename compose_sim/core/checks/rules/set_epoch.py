"""Judge whether the order of samples changes from epoch to epoch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from compose_sim.core.checks import Case, Result, failed, not_applicable, passed
from compose_sim.core.checks.evidence.epochs import Epoch, Loader, indices_of, loaders, rows_of
from compose_sim.node.records.models import OptimizerStep

QUESTION = "Does the order of samples change from epoch to epoch?"

_LEAST = 8  # samples of a rank: fewer may come in the same order by chance
_FIX = "Call {it}.set_epoch(epoch) at the start of every epoch, before `for batch in loader`: it seeds the order."
_FIX_OWN_SAMPLER = (
    "Seed the sampler's order with seed + epoch: give it a set_epoch(epoch) and call that before every epoch."
)


def judge(case: Case) -> Result:
    """Compare the orders of consecutive epochs of each training loader on each rank."""
    compared = shuffled = 0
    for by_rank in loaders(case):
        for loader in by_rank.values():
            epochs = [loader.epochs[number] for number in sorted(loader.epochs) if loader.epochs[number].trained]
            steps = list(case.observed.ranks[loader.rank].of(OptimizerStep))
            for before, after in pairwise(epochs):
                if not _comparable(loader, before, after) or _starts_over(steps, before, after):
                    continue
                compared += 1
                shuffled += _is_shuffled(loader, before)
                if _is_repeated(loader, before, after):
                    return _repeated(by_rank, loader, before, after)
    if not compared:
        return not_applicable("no loader was trained from for two epochs whose order is known")
    if not shuffled:
        return passed("samples are not shuffled")
    return passed("each epoch had a different order")


def _comparable(loader: Loader, before: Epoch, after: Epoch) -> bool:
    if loader.info.iterable:
        return all(len(rows_of(each.batches)) >= _LEAST for each in (before, after))
    return all(each.last.drawn >= _LEAST and each.last.order is not None for each in (before, after))


def _is_shuffled(loader: Loader, epoch: Epoch) -> bool:
    """Return whether the order is another than that of the data. What pads a share without shuffling comes from its beginning."""
    return not epoch.last.ascending and loader.info.sampling.shuffle is not False


def _starts_over(steps: Sequence[OptimizerStep], before: Epoch, after: Epoch) -> bool:
    """Return whether another training with new optimizers has begun, as in a search for a learning rate: it may start at epoch 0."""
    if not (before.batches and after.batches):
        return False
    first, later = (
        next((each.optimizer for each in steps if each.index > epoch.batches[0].index), None)
        for epoch in (before, after)
    )
    return first is not None and later is not None and later > first


def _is_repeated(loader: Loader, before: Epoch, after: Epoch) -> bool:
    """Return whether an order that is meant to change did not."""
    info = loader.info
    if info.iterable:  # shuffling cannot be seen, only that set_epoch exists and is never called
        called = before.marks != after.marks or not after.marks
        same = rows_of(before.batches) == rows_of(after.batches)
        return info.data_set_epoch and info.data_shuffles and not called and same
    if not (_is_shuffled(loader, before) and _is_shuffled(loader, after)):
        return False
    sampling = info.sampling
    meant = info.set_epoch or sampling.random or sampling.shuffle or sampling.seed is not None
    return bool(meant) and _same_order(before, after)


def _same_order(before: Epoch, after: Epoch) -> bool:
    """Return whether both epochs drew the same indices; if one was cut short, whether it drew those at the start of the other."""
    if before.last.drawn == after.last.drawn:
        return before.last.order == after.last.order
    first, second = (indices_of(epoch.batches) or [] for epoch in (before, after))
    count = min(len(first), len(second))
    is_one_batch = min(len(before.batches), len(after.batches)) < 2  # a look at the data, or a warm-up
    return count >= _LEAST and not is_one_batch and first[:count] == second[:count]


def _repeated(by_rank: dict[int, Loader], loader: Loader, before: Epoch, after: Epoch) -> Result:
    info = loader.info
    drawn = min(before.last.drawn, after.last.drawn)
    count = f"the same {drawn} samples" if drawn else "the same samples"
    detail = f"epochs {before.number} and {after.number} of {loader} drew {count} in the same order"
    fix = _FIX_OWN_SAMPLER
    if info.set_epoch or info.data_set_epoch:
        names = [name for name in info.samplers if "Batch" not in name] or [*info.samplers] or ["sampler"]
        detail += f"; the epoch of its {names[-1] if info.set_epoch else info.data} did not change"
        fix = _FIX.format(it="sampler" if info.set_epoch else "data_set")
    return failed(detail, fix=fix, at=loader.place, ranks=sorted(by_rank))
