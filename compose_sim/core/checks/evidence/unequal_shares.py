"""Find a metric that is averaged over ranks as if all had evaluated equally many samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from compose_sim.core.events.observations import Observed, RankObserved
from compose_sim.node.records.data import EpochProgress
from compose_sim.node.records.models import OptimizerStep
from compose_sim.node.records.process_groups import Collective
from compose_sim.node.records.record import Place

_NEAR = 1e-3
_OPS = ("all_reduce", "reduce", "all_gather", "all_gather_into_tensor")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanOfMeans:
    """Each rank's own mean, the number of its samples, and where they were reduced."""

    means: Mapping[int, float]
    samples: Mapping[int, int]
    at: Place | None

    @property
    def mean(self) -> float:
        """The mean of the means."""
        return sum(self.means.values()) / len(self.means)

    @property
    def weighted(self) -> float:
        """The mean over all samples."""
        return sum(self.means[rank] * count for rank, count in self.samples.items()) / sum(self.samples.values())


def means_of_means(observed: Observed) -> Iterator[MeanOfMeans]:
    """
    Yield the reductions of shares of hits: on each rank a number from 0 to 1 that is a whole number of the rank's own samples.

    An evaluation is left out if ranks then exchange anything but such single numbers before the next step. One that is whole on
    all ranks may be the count by which they weigh the others.
    """
    by_rank = {rank.rank: _reduced_after_evaluation(rank) for rank in observed}
    for together in zip(*by_rank.values(), strict=False):
        samples = {exchanged[0].rank: count for exchanged, count in together}
        numbers = list(zip(*(exchanged for exchanged, _ in together), strict=False))
        are_equally_many = all(len(exchanged) == len(numbers) for exchanged, _ in together)
        has_counts = any(all(_is_whole(each.values[0]) for each in number) for number in numbers)
        if are_equally_many and not has_counts and len(set(samples.values())) > 1:
            yield from (found for number in numbers if (found := _mean_of_means(number, samples)))


def _mean_of_means(reduced: Sequence[Collective], samples: Mapping[int, int]) -> MeanOfMeans | None:
    means = {each.rank: each.values[0] for each in reduced}
    hits = [means[rank] * samples[rank] for rank in means]
    are_shares = all(0 <= each <= 1 for each in means.values()) and all(map(_is_whole, hits))
    is_one = len({each.at for each in reduced}) == 1 and set(means) == set(reduced[0].group)
    is_mean = is_one and (are_shares or reduced[0].reduce == "AVG")
    return MeanOfMeans(means=means, samples=samples, at=reduced[0].at) if is_mean else None


def _is_whole(value: float) -> bool:
    return abs(value - round(value)) < _NEAR


def _reduced_after_evaluation(rank: RankObserved) -> list[tuple[Sequence[Collective], int]]:
    """Return the single numbers that the rank exchanged after each evaluation, with the number of samples it evaluated."""
    found: list[tuple[Sequence[Collective], int]] = []
    exchanged: list[Collective] = []
    samples = 0

    def close() -> None:
        if samples and exchanged and all(len(each.values) == 1 and each.op in _OPS for each in exchanged):
            found.append((tuple(exchanged), samples))
        exchanged.clear()

    for each in rank.of(Collective, EpochProgress, OptimizerStep):
        if isinstance(each, Collective):
            exchanged += [each] if each.op != "barrier" else []
            continue
        if isinstance(each, EpochProgress) and each.phase != "exhausted":
            continue
        close()
        samples = each.drawn if isinstance(each, EpochProgress) and not each.trained else 0
    close()
    return found
