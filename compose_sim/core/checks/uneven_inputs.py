"""Do all ranks train on equally many batches?"""

from __future__ import annotations

from dataclasses import dataclass

from compose_sim.core.checks import Case, Result, failed, not_applicable, passed
from compose_sim.core.checks.epochs import Epoch, Loader, groups, loaders, named

QUESTION = "Do all ranks train on equally many batches?"

_FIX = (
    "Give every rank equally many batches, with a DistributedSampler or drop_last=True; or train inside `with model.join():`, "
    "which answers for ranks that have none left."
)


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
        return not_applicable("fewer than two ranks train one model from a DataLoader")
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
