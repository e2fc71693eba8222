"""Judge the orders, the ends and the random numbers of loaders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, pairwise

from compose_sim.core.checks import Case, Result, check, failed, not_applicable, passed, warned, where
from compose_sim.core.checks.common_draws import (
    MIN_DRAWS,
    Draws,
    Pair,
    both,
    drawn_inputs,
    from_one_state,
    in_fetches,
    in_loop,
)
from compose_sim.core.checks.epochs import (
    Epoch,
    Loader,
    groups,
    have_parts,
    indices_of,
    loaders,
    local_rank_twins,
    pairs,
    pairs_text,
    read_between,
    rows_of,
    training_loaders,
)
from compose_sim.core.checks.resumed_epochs import explained, resumed_epochs
from compose_sim.core.text import format_count
from compose_sim.node.records.devices_and_files import FileUse
from compose_sim.node.records.models import OptimizerStep
from compose_sim.node.records.process_groups import Collective
from compose_sim.node.records.record import Place

_MIN_SAMPLES = 8  # samples of a rank: fewer may come in the same order by chance
_FIX_SET_EPOCH = (
    "Call {it}.set_epoch(epoch) at the start of every epoch, before `for batch in loader`: it seeds the order."
)
_FIX_OWN_SAMPLER = (
    "Seed the sampler's order with seed + epoch: give it a set_epoch(epoch) and call that before every epoch."
)


@check("set-epoch", "Does the order of samples change from epoch to epoch?")
def set_epoch(case: Case) -> Result:
    """Compare the orders of the epochs of each training loader on each rank."""
    compared = shuffled = 0
    again: Result | None = None
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
            again = again or _repeated_later(case, by_rank, loader, epochs)
    if again:
        return again
    if not compared:
        return not_applicable("no loader was trained from for two epochs whose order is known")
    if not shuffled:
        return passed("samples are not shuffled")
    return passed(f"each epoch had a different order ({format_count(compared, 'pair')} compared)")


def _repeated_later(case: Case, by_rank: dict[int, Loader], loader: Loader, epochs: Sequence[Epoch]) -> Result | None:
    """Find an epoch with the order of one long before it, in one training or in one that goes on from a checkpoint of the run."""
    steps = list(case.observed.ranks[loader.rank].of(OptimizerStep))
    for later, after in enumerate(epochs):
        for before in epochs[:later]:
            if not (before.exhausted and after.exhausted and _comparable(loader, before, after)):
                continue  # what was cut short may rightly go on in the same order
            loaded = _loaded_between(case, loader.rank, before, after)
            if (_starts_over(steps, before, after) and not loaded) or not _is_repeated(loader, before, after):
                continue
            since = f", after {loaded.path.rpartition('/')[2]} was loaded{where(loaded.at)}" if loaded else ""
            return warned(
                f"epoch {after.number} of {loader} drew the {after.last.drawn} samples of epoch {before.number} again in the same "
                f"order{since}",
                fix="Count epochs on from the checkpoint: save the epoch with the weights, and call `sampler.set_epoch(epoch)` with a "
                "number that no earlier epoch had.",
                at=loader.place,
                ranks=sorted(by_rank),
            )
    return None


def _loaded_between(case: Case, rank: int, before: Epoch, after: Epoch) -> FileUse | None:
    if not (before.batches and after.batches):
        return None
    return read_between(case.observed, rank, before.batches[-1].index, after.batches[0].index)


def _comparable(loader: Loader, before: Epoch, after: Epoch) -> bool:
    if loader.info.iterable:
        return all(len(rows_of(each.batches)) >= _MIN_SAMPLES for each in (before, after))
    return all(each.last.drawn >= _MIN_SAMPLES and each.last.order is not None for each in (before, after))


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
    return count >= _MIN_SAMPLES and not is_one_batch and first[:count] == second[:count]


_WITHOUT_EPOCH = ("SequentialSampler", "RandomSampler", "SubsetRandomSampler", "WeightedRandomSampler", "BatchSampler")


def _repeated(by_rank: dict[int, Loader], loader: Loader, before: Epoch, after: Epoch) -> Result:
    info = loader.info
    drawn = min(before.last.drawn, after.last.drawn)
    count = f"the same {drawn} samples" if drawn else "the same samples"
    detail = f"epochs {before.number} and {after.number} of {loader} drew {count} in the same order"
    fix = _FIX_OWN_SAMPLER
    if info.set_epoch or info.data_set_epoch:
        outer, *inner = [*info.samplers] or ["sampler"]
        owner = next((name for name in reversed(inner) if name not in _WITHOUT_EPOCH), outer)
        of_batches = "loader.batch_sampler" if inner and owner is outer else "sampler"
        detail += f"; the epoch of its {owner if info.set_epoch else info.data} did not change"
        fix = _FIX_SET_EPOCH.format(it=of_batches if info.set_epoch else "data_set")
    return failed(detail, fix=fix, at=loader.place, ranks=sorted(by_rank))


_FIX_DOUBLED_TRAINING = (
    "Make the length divisible by the number of ranks, or use DistributedSampler(…, drop_last=True), which leaves out different "
    "samples in every epoch."
)
_FIX_DOUBLED_EVALUATION = (
    "A metric over these samples counts some twice: evaluate with a sampler that does not pad, such as range(rank, len(data), world), "
    "or gather the predictions and cut them at len(data)."
)
_FIX_DROPPED_TRAINING = "Shuffle, so that different samples are left out in every epoch, or use drop_last=False."
_FIX_RESUMED = (
    "Save how many samples all ranks together have trained on in this epoch: not those of one rank, nor those fetched ahead. If the "
    "number of the epoch seeds the order, save that too."
)
_FIX_DROPPED_EVALUATION = "The metric is not that of all samples: evaluate with drop_last=False in loader and sampler."


@check("sampler-tail", "Is every sample used once per epoch?", may_follow=("rank-confusion", "sampler-overlap"))
def sampler_tail(case: Case) -> Result:
    """Combine what all ranks of a group drew in an epoch that they finished, and compare it with the data set."""
    looked_at = 0
    for by_rank in loaders(case):
        for group in groups(case, by_rank):
            members = {rank: loader for rank, loader in by_rank.items() if rank in group}
            if len(members) < max(2, len(group)) or len({loader.data for loader in members.values()}) > 1:
                continue
            numbers = sorted(set.intersection(*(set(loader.epochs) for loader in members.values())))
            known = {it: _drawn({rank: each.epochs[it] for rank, each in members.items()}) for it in numbers}
            ever = len({each for drawn in known.values() if drawn for each in chain.from_iterable(drawn.values())})
            for number, drawn in known.items():
                result = _judge_epoch(case, members, number, drawn, ever) if drawn is not None else None
                if result is not None and result.status != "passed":
                    return result
                looked_at += result is not None
    if resumed := next(resumed_epochs(case.observed), None):
        return warned(explained(resumed), fix=_FIX_RESUMED, at=resumed.at)
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


def _judge_epoch(
    case: Case, members: dict[int, Loader], number: int, drawn: dict[int, list[int]], ever: int
) -> Result | None:
    """
    Return None if the data set is not divided: if ranks see everything, or a chosen part, or draw with replacement.

    `ever` is the number of samples that were drawn in any epoch: each of them may leave out others.
    """
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
    is_used_at_times = whole and ever == length
    if dropped and not (trained and (is_used_at_times or _is_asked_for(loader))):
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


_FIX_SEED = (
    "Once the model is built, seed each rank differently: torch.manual_seed(seed + dist.get_rank()), and likewise random and numpy if "
    "they are used. DDP itself makes the models equal."
)


@check("same-randomness", "Does each rank draw its own random numbers?", may_follow=("rank-confusion",))
def same_randomness(case: Case) -> Result:
    """Compare the states of random generators before draws for samples, on all pairs of ranks of a DDP group."""
    together = pairs(case)
    if not together:
        return not_applicable("there is only one rank")
    purposes: list[tuple[str, dict[int, Draws], list[Pair], Place | None]] = [
        ("the model's forward (dropout)", in_loop(case.observed, forward=True), together, None),
        ("what is done to a batch before the model's forward", in_loop(case.observed, forward=False), together, None),
        ("the inputs of a model", drawn_inputs(case.observed), together, None),
    ]
    for by_rank in training_loaders(case):
        draws = {rank: in_fetches(case.observed.ranks[rank], loader.info) for rank, loader in by_rank.items()}
        first = next(iter(by_rank.values()))
        of = [pair for pair in pairs(case, by_rank) if not have_parts(case, by_rank, pair)]
        purposes.append((f"{first} (augmentation)", draws, of, first.place))
    compared = 0
    for purpose, draws, of, place in purposes:
        comparable = [pair for pair in of if len(both(draws, pair)) >= MIN_DRAWS]
        same = [pair for pair in comparable if all(left == right for left, right in both(draws, pair))]
        compared += len(comparable)
        if same:
            detail = (
                f"{pairs_text(same)} drew the same random numbers in {purpose}: their generators were in the same state before each "
                f"of {len(both(draws, same[0]))} draws"
            )
            if local_rank_twins(case, same):
                detail += "; these are the ranks with the same LOCAL_RANK, which was probably the seed"
            return warned(detail, fix=_FIX_SEED, at=place, ranks=sorted({rank for pair in same for rank in pair}))
    if one := from_one_state(case.observed, together):
        return warned(
            f"{pairs_text(one.pairs)} drew different random numbers{where(one.at)}, but the same ones since each loaded the state of a "
            f"generator{where(one.loaded)}, as if it was that of one rank",
            fix="Save and load the state of each rank's generator, or seed it after the load: manual_seed(seed + dist.get_rank()).",
            at=one.loaded,
            ranks=sorted({rank for pair in one.pairs for rank in pair}),
        )
    if not compared:
        return not_applicable("no random numbers were seen to be drawn for samples or in a model")
    return passed("each rank drew its own random numbers")
