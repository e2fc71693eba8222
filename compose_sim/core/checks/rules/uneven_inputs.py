"""Do all ranks train on equally many batches?"""

from __future__ import annotations

import re
from dataclasses import dataclass

from compose_sim.core.checks import Case, Result, failed, not_applicable, passed
from compose_sim.core.checks.evidence.epochs import Epoch, Loader, groups, loaders, named
from compose_sim.core.events.observations import RankObserved

QUESTION = "Do all ranks train on equally many batches?"

_FIX = (
    "Give every rank equally many batches, with a DistributedSampler or drop_last=True; or train inside `with model.join():`, "
    "which answers for ranks that have none left."
)

_FORWARD = "DDP forward"
_BY_OTHERS = re.compile(r"gloo|c10d|[Nn][Cc][Cc][Ll]|closed by peer|reset by peer|[Tt]imed? ?out|Dist[A-Z]\w*Error")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """How far a rank has come in its training loaders."""

    fetched: int
    synchronised: int
    left: bool  # it used up the last epoch that it began
    closed: bool  # all of it was noted
    last: tuple[Loader, Epoch]
    epochs: dict[tuple[int, int], Epoch]  # by the loader's place among all, and number


def judge(case: Case) -> Result:
    """Compare how far the ranks of a group have come when one of them had no batch left."""
    training = [each for each in loaders(case) if any(loader.trained for loader in each.values())]
    by_group: dict[tuple[int, ...], list[dict[int, Loader]]] = {}
    for by_rank in training:
        for group in groups(case, by_rank):
            by_group.setdefault(group, []).append(by_rank)
    ways = {group: _ways(group, its) for group, its in by_group.items()}
    if not any(len(members) > 1 for members in ways.values()):
        return _judge_by_hand(case) or not_applicable("fewer than two ranks train one model from a DataLoader")
    counts = sorted({way.synchronised for members in ways.values() for way in members.values()})
    if not any(counts):
        return not_applicable("no DDP model is trained on the batches")
    if any(each["enabled"] for each in case.observed.of("join")):
        return passed("the training runs inside join(), which answers for ranks without batches")
    for members in ways.values():
        for ended, way in members.items():
            further = [rank for rank, other in members.items() if _is_uneven(case, way, other)]
            if further:
                return _uneven(members, ended, further)
    return passed(f"ranks trained on equally many batches ({' or '.join(map(str, counts))})")


def _ways(group: tuple[int, ...], training: list[dict[int, Loader]]) -> dict[int, _Way]:
    ways = {}
    for rank in group:
        epochs = [
            (place, loader, epoch)
            for place, by_rank in enumerate(training)
            if (loader := by_rank.get(rank)) is not None
            for epoch in loader.epochs.values()
            if epoch.synchronised or epoch.trained or epoch.batches
        ]
        if epochs:
            _, loader, epoch = max(epochs, key=lambda each: each[2].batches[0].index if each[2].batches else -1)
            ways[rank] = _Way(
                fetched=sum(epoch.fetched for _, _, epoch in epochs),
                synchronised=sum(epoch.synchronised for _, _, epoch in epochs),
                left=epoch.exhausted,
                closed=all(epoch.closed for _, _, epoch in epochs),
                last=(loader, epoch),
                epochs={(place, epoch.number): epoch for place, _, epoch in epochs},
            )
    return ways


def _is_uneven(case: Case, ended: _Way, other: _Way) -> bool:
    """Whether a rank had no batch left while the other went on."""
    if not ended.left:
        return False
    if case.verdict == "passed" or (ended.closed and other.closed):
        return other.synchronised > ended.synchronised
    # A run that broke off: what the other did with its last batch could not be noted any more. That one rank had come further
    # than another tells nothing, unless it was by the batches of one epoch.
    further = other.fetched > ended.fetched and other.synchronised >= ended.synchronised
    return further and any(
        epoch.exhausted and key in other.epochs and epoch.fetched < other.epochs[key].fetched
        for key, epoch in ended.epochs.items()
    )


def _uneven(members: dict[int, _Way], ended: int, further: list[int]) -> Result:
    loader, epoch = members[ended].last
    other = members[further[0]]
    numbers = f"{members[ended].fetched} batches" if members[ended].fetched != other.fetched else "as many"
    detail = (
        f"rank {ended} had no batch left in epoch {epoch.number} of {named(loader)} after {numbers}, "
        f"while rank {further[0]} went on to batch {other.fetched}"
    )
    length, its = loader.facts["length"], other.last[0].facts["length"]
    if length != its and length is not None:
        detail += f"; their data sets hold {length} and {its} samples"
    file, line = loader.place
    return failed(detail, fix=_FIX, file=file, line=line, ranks=tuple(sorted({ended, *further})))


def _judge_by_hand(case: Case) -> Result | None:
    """Without a loader: some ranks have left their loop for what comes after it, where others wait in one more forward or backward."""
    if case.verdict not in ("hung", "failed") or any(each["enabled"] for each in case.observed.of("join")):
        return None
    for group in groups(case):
        members = [case.observed.ranks[rank] for rank in group if rank in case.observed.ranks]
        if len(members) < 2:
            continue
        counts = {rank.rank: sum(each["op"] == _FORWARD for each in rank.of("collective")) for rank in members}
        least, most = min(counts.values()), max(counts.values())
        ended = [rank for rank in members if counts[rank.rank] == least]
        further = [rank for rank in members if counts[rank.rank] > least]
        if not least or not further or not all(_waits_in_model(rank) for rank in further):
            continue
        known = max(map(_others, further))
        if all(_has_left(rank, known) for rank in ended) and not _may_be_a_branch(ended):
            first, other = ended[0].rank, next(rank.rank for rank in further if counts[rank.rank] == most)
            place = next(reversed(list(case.observed.ranks[other].of("collective"))))["at"] or (None, None)
            return failed(
                f"rank {first} was done after {least} batches, while rank {other} went on to batch {most} (by calls of their model)",
                fix=_FIX,
                file=place[0],
                line=place[1],
                ranks=tuple(sorted(counts)),
            )
    return None


def _waits_in_model(rank: RankObserved) -> bool:
    last = next(reversed(list(rank.of("collective"))), None)
    return last is not None and last["op"] == _FORWARD and _is_drawn_along(rank)


def _has_left(rank: RankObserved, known: int) -> bool:
    """Whether a rank waits after its last step in a collective that others have not come to, or is at its end."""
    outcome = rank.last("outcome")
    if outcome is not None and not outcome["raised"]:
        return True
    last = next(reversed(list(rank.of("collective", "step"))), None)
    waits = last is not None and last.kind == "collective" and last["op"] != _FORWARD
    return waits and _others(rank) > known and _is_drawn_along(rank)


def _others(rank: RankObserved) -> int:
    """How many collectives of its own the rank's script has issued."""
    return sum(not str(each["op"]).startswith("DDP") for each in rank.of("collective"))


def _is_drawn_along(rank: RankObserved) -> bool:
    """Whether nothing but the absence of others ended it."""
    outcome = rank.last("outcome")
    return outcome is None or not outcome["raised"] or bool(_BY_OTHERS.search(outcome["raised"]))


def _may_be_a_branch(ended: list[RankObserved]) -> bool:
    """Whether rank 0 (of each node) may have issued within the loop what no other rank does: then batches tell nothing."""
    if any(rank.local_rank for rank in ended):
        return False
    places = [[each["at"] for each in rank.of("collective")] for rank in ended]
    return any(at and at[-1] not in at[:-1] for at in places)
