"""Judge whether all ranks train on equally many batches."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from compose_sim.core.checks import Case, Result, failed, not_applicable, passed
from compose_sim.core.checks.evidence.epochs import Epoch, Loader, calls_by_batch, groups, training_loaders
from compose_sim.core.checks.source.departures import FIX, departure, skipping_line
from compose_sim.core.checks.wording import ranks_text, where
from compose_sim.core.events.observations import RankObserved
from compose_sim.node.records.data import Join
from compose_sim.node.records.models import LossValue, OptimizerStep
from compose_sim.node.records.process_groups import Collective, DdpForward
from compose_sim.node.records.script import ScriptEnd

QUESTION = "Do all ranks train on equally many batches?"

_FIX = (
    "Give every rank equally many batches, with a DistributedSampler or drop_last=True, or train inside `with model.join():`, "
    "which answers for ranks that have none left."
)

_FIX_BY_HAND = (
    "Give every rank equally many batches, and skip one on every rank or on none: reduce what decides it "
    "(`dist.all_reduce(is_bad, op=dist.ReduceOp.MAX)`). Or train inside `with model.join():`, which answers for ranks that have "
    "none left."
)

_FIX_SKIP = (
    "Decide on all ranks alike: reduce the condition first, as in `dist.all_reduce(is_bad, op=dist.ReduceOp.MAX)`, and skip the "
    "batch on every rank or on none."
)

_BY_OTHERS = re.compile(r"gloo|c10d|[Nn][Cc][Cc][Ll]|closed by peer|reset by peer|[Tt]imed? ?out|Dist[A-Z]\w*Error")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """How far a rank has come in the training loaders."""

    fetched: int
    synchronized: int
    left: bool  # whether it exhausted the last epoch that it began
    closed: bool  # whether all of it was recorded
    raised: bool  # whether an exception ended the script, maybe between two epochs
    last: tuple[Loader, Epoch]
    epochs: dict[tuple[int, int], Epoch]  # by the position of the loader among all, and by number


def judge(case: Case) -> Result:
    """Compare how far the ranks of a group had come when one of them had no batch left."""
    skipped = _skipped(case) or _never_used(case)
    if skipped:
        return skipped
    by_group: dict[tuple[int, ...], list[dict[int, Loader]]] = {}
    for by_rank in training_loaders(case):
        for group in groups(case, by_rank):
            by_group.setdefault(group, []).append(by_rank)
    ends = case.observed.of(ScriptEnd)
    raised = {each.rank for each in ends if _raised_by_itself(each)}
    ways = {group: _ways(group, training, raised) for group, training in by_group.items()}
    if not any(len(members) > 1 for members in ways.values()):
        return _judge_by_hand(case) or not_applicable("fewer than two ranks train one model from a DataLoader")
    counts = sorted({way.synchronized for members in ways.values() for way in members.values()})
    if not any(counts):
        return not_applicable("no DDP model is trained on the batches")
    if _joins(case):
        return passed("the training runs inside join(), which answers for ranks without batches")
    for members in ways.values():
        for ended, way in members.items():
            further = [rank for rank, other in members.items() if _is_uneven(case, way, other)]
            if further:
                return _stopped(case, members, ended, further) or _uneven(members, ended, further)
    if any(len({way.synchronized for way in members.values()}) > 1 for members in ways.values()):
        listed = " or ".join(map(str, counts))
        if case.verdict != "passed":
            return not_applicable(f"the run ended ({case.verdict}) when the ranks had trained on {listed} batches")
        return passed(f"ranks trained on {listed} batches, and none had to wait for another")
    which = "ranks" if len(counts) == 1 else "the ranks of each group"
    fetched = {way.fetched for members in ways.values() for way in members.values()}
    if len(fetched) == len(counts) == 1 and max(fetched) > max(counts):
        return passed(
            f"ranks had equally many batches ({max(fetched)}), and reduced gradients after {max(counts)} of them"
        )
    return passed(f"{which} trained on equally many batches ({' and '.join(map(str, counts))})")


def _raised_by_itself(end: ScriptEnd) -> bool:
    return bool(end.raised) and not _BY_OTHERS.search(end.raised or "")


def _joins(case: Case) -> bool:
    return any(each.enabled for each in case.observed.of(Join))


def _ways(group: tuple[int, ...], training: list[dict[int, Loader]], raised: Collection[int]) -> dict[int, _Way]:
    ways = {}
    for rank in group:
        epochs = [
            (position, loader, epoch)
            for position, by_rank in enumerate(training)
            if (loader := by_rank.get(rank)) is not None
            for epoch in loader.epochs.values()
            if epoch.synchronized or epoch.trained or epoch.batches
        ]
        if epochs:
            _, loader, epoch = max(epochs, key=lambda each: each[2].batches[0].index if each[2].batches else -1)
            ways[rank] = _Way(
                fetched=sum(epoch.fetched for _, _, epoch in epochs),
                synchronized=sum(epoch.synchronized for _, _, epoch in epochs),
                left=epoch.exhausted,
                closed=all(epoch.closed for _, _, epoch in epochs),
                raised=rank in raised,
                last=(loader, epoch),
                epochs={(position, epoch.number): epoch for position, _, epoch in epochs},
            )
    return ways


def _is_uneven(case: Case, ended: _Way, other: _Way) -> bool:
    """Return whether a rank had no batch left while the other continued."""
    if not ended.left:
        return False
    if case.verdict == "passed" or (ended.closed and other.closed and not ended.raised):
        return other.synchronized > ended.synchronized
    # The run broke off, so what the other rank did with the last batch may not be recorded. That one rank had come further than
    # another means nothing, unless it was by the batches of one epoch.
    further = other.fetched > ended.fetched and other.synchronized >= ended.synchronized
    return further and any(
        epoch.exhausted and key in other.epochs and epoch.fetched < other.epochs[key].fetched
        for key, epoch in ended.epochs.items()
    )


def _stopped(case: Case, members: dict[int, _Way], ended: int, further: list[int]) -> Result | None:
    """Find ranks that had as many batches as the others in each epoch, and stopped between two."""
    way, other = members[ended], members[further[0]]
    same = all(key in other.epochs and epoch.fetched == other.epochs[key].fetched for key, epoch in way.epochs.items())
    begun = [epoch for key, epoch in other.epochs.items() if key not in way.epochs]
    loader, epoch = way.last
    if not same or not begun:
        return None
    left = [rank for rank, mine in members.items() if mine.epochs.keys() == way.epochs.keys()]
    found = departure(case)
    return failed(
        f"{ranks_text(left)} stopped after epoch {epoch.number} of {loader}, in which each rank had {epoch.fetched} batches, while "
        f"{ranks_text(further)} began epoch {begun[0].number}: ranks decide alone when to stop{f'; {found.text}' if found else ''}",
        fix=FIX,
        at=found.at if found else loader.place,
        ranks=left,
    )


def _uneven(members: dict[int, _Way], ended: int, further: list[int]) -> Result:
    loader, epoch = members[ended].last
    other = members[further[0]]
    numbers = f"{members[ended].fetched} batches" if members[ended].fetched != other.fetched else "as many"
    detail = (
        f"rank {ended} had no batch left in epoch {epoch.number} of {loader} after {numbers}, "
        f"while rank {further[0]} continued to batch {other.fetched}"
    )
    length, its = loader.info.length, other.last[0].info.length
    if length != its and length is not None:
        detail += f"; their data sets hold {length} and {its} samples"
    return failed(detail, fix=_FIX, at=loader.place, ranks=sorted({ended, *further}))


def _skipped(case: Case) -> Result | None:
    """Find a forward pass in training that some ranks of a group left without a backward pass, and went on to the next."""
    if case.verdict not in ("hung", "failed") or _joins(case):
        return None
    for group in groups(case):
        passes = {rank: _passes(case.observed.ranks[rank]) for rank in group if rank in case.observed.ranks}
        for number, together in enumerate(zip(*(mine for mine in passes.values()), strict=False)):
            without = [rank for rank, (_, loss) in zip(passes, together, strict=True) if loss is None]
            if not without or len(without) == len(passes):
                continue
            if any(number + 1 == len(passes[rank]) for rank in without):
                break  # its last pass: it did not go on
            forward, others = passes[without[0]][number][0], [rank for rank in passes if rank not in without]
            return failed(
                f"{ranks_text(without)} left forward pass {number + 1}{where(forward.at)} without a backward pass and went on, "
                f"while {ranks_text(others)} reduced its gradients: ranks decide alone to skip a batch",
                fix=_FIX_SKIP,
                at=forward.at,
                ranks=without,
            )
    return None


def _never_used(case: Case) -> Result | None:
    """Find a batch that some ranks took without calling the model, and went on to the next, while others called it."""
    ends = case.observed.of(ScriptEnd)
    if case.verdict not in ("hung", "failed") or _joins(case) or any(map(_raised_by_itself, ends)):
        return None
    for by_rank in training_loaders(case):
        for group in groups(case, by_rank):
            uses = {rank: calls_by_batch(case.observed.ranks[rank], by_rank[rank]) for rank in group if rank in by_rank}
            for number, batch in sorted({key for mine in uses.values() for key in mine}):
                called = {rank: mine[number, batch] for rank, mine in uses.items() if (number, batch) in mine}
                without = [rank for rank, at in called.items() if at is None]
                others = {rank: at for rank, at in called.items() if at is not None}
                if without and others:
                    line = skipping_line(case, next(iter(others.values())))
                    return failed(
                        f"{ranks_text(without)} took batch {batch + 1} of epoch {number} from {by_rank[without[0]]} and went on to the "
                        f"next without calling the model{f', by the `continue` in line {line[1]}' if line else ''}, while "
                        f"{ranks_text(others)} trained on it: ranks decide alone to skip a batch",
                        fix=_FIX_SKIP,
                        at=line or next(iter(others.values())),
                        ranks=without,
                    )
    return None


def _passes(rank: RankObserved) -> list[tuple[DdpForward, LossValue | None]]:
    """Return the calls of the rank's DDP models in training, each with the loss of the backward pass before the next call."""
    found: list[tuple[DdpForward, LossValue | None]] = []
    for each in rank.of(DdpForward, LossValue):
        if isinstance(each, DdpForward):
            found.append((each, None))
        elif found:
            found[-1] = found[-1][0], each
    return found


def _judge_by_hand(case: Case) -> Result | None:
    """Without a loader, find ranks that have left the loop while others wait in one more forward or backward pass."""
    if case.verdict not in ("hung", "failed") or _joins(case):
        return None
    for group in groups(case):
        members = [case.observed.ranks[rank] for rank in group if rank in case.observed.ranks]
        if len(members) < 2:
            continue
        counts = {rank.rank: sum(1 for _ in rank.of(DdpForward)) for rank in members}
        least, most = min(counts.values()), max(counts.values())
        ended = [rank for rank in members if counts[rank.rank] == least]
        further = [rank for rank in members if counts[rank.rank] > least]
        if not least or not further or not all(_waits_in_model(rank) for rank in further):
            continue
        known = max(map(_own_collectives, further))
        if all(_has_left(rank, known) for rank in ended) and not _may_be_a_branch(ended, further):
            other = next(rank for rank in further if counts[rank.rank] == most)
            forward, gone = other.last(DdpForward), departure(case)
            return failed(
                f"rank {ended[0].rank} ended after {least} batches, while rank {other.rank} continued to batch {most} "
                f"(counted by calls of the model){f'; {gone.text}' if gone else ''}",
                fix=_FIX_BY_HAND,
                at=gone.at if gone else forward.at if forward else None,
                ranks=sorted(counts),
            )
    return None


def _waits_in_model(rank: RankObserved) -> bool:
    return isinstance(rank.last(Collective, DdpForward), DdpForward) and _ended_by_others(rank)


def _has_left(rank: RankObserved, known: int) -> bool:
    """Return whether a rank, after its last step, waits in a collective that others have not reached, or has ended."""
    end = rank.last(ScriptEnd)
    if end is not None and not end.raised:
        return True
    waits = isinstance(rank.last(Collective, DdpForward, OptimizerStep), Collective)
    return waits and _own_collectives(rank) > known and _ended_by_others(rank)


def _own_collectives(rank: RankObserved) -> int:
    """Return how many collectives the rank's script has issued."""
    return sum(1 for _ in rank.of(Collective))


def _ended_by_others(rank: RankObserved) -> bool:
    """Return whether nothing but the absence of others ended the rank."""
    end = rank.last(ScriptEnd)
    return end is None or not end.raised or bool(_BY_OTHERS.search(end.raised))


def _may_be_a_branch(ended: list[RankObserved], further: list[RankObserved]) -> bool:
    """Return whether rank 0 (of each node) may have issued what no other rank does within the loop: then counts mean nothing."""
    if any(rank.local_rank for rank in ended):
        return False
    if any(rank.rank for rank in ended) and not any(rank.local_rank for rank in further):
        return False  # with one rank per node, such a branch takes rank 0 alone, or all ranks
    places = [[each.at for each in rank.of(Collective, DdpForward)] for rank in ended]
    return any(at and at[-1] not in at[:-1] for at in places)
