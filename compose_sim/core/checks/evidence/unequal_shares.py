"""Find a metric that is averaged over ranks as if all had evaluated equally many samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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

    A reduction is left out if ranks exchange more than this one number between the evaluation and the next step.
    """
    by_rank = {rank.rank: _reduced_after_evaluation(rank) for rank in observed}
    for together in zip(*by_rank.values(), strict=False):
        means = {collective.rank: collective.values[0] for collective, _ in together}
        samples = {collective.rank: count for collective, count in together}
        first = together[0][0]
        places = {each.at for each, _ in together}
        if len(set(samples.values())) < 2 or len(places) > 1 or set(means) != set(first.group):
            continue
        hits = [means[rank] * samples[rank] for rank in means]
        are_shares = all(0 <= each <= 1 for each in means.values()) and all(map(_is_whole, hits))
        if (are_shares or first.reduce == "AVG") and not all(map(_is_whole, means.values())):
            yield MeanOfMeans(means=means, samples=samples, at=first.at)


def _is_whole(value: float) -> bool:
    return abs(value - round(value)) < _NEAR


def _reduced_after_evaluation(rank: RankObserved) -> list[tuple[Collective, int]]:
    """Return the only number that the rank exchanged after each evaluation, with the number of samples it evaluated."""
    found: list[tuple[Collective, int]] = []
    exchanged: list[Collective] = []
    samples = 0

    def close() -> None:
        if samples and len(exchanged) == 1 and len(exchanged[0].values) == 1 and exchanged[0].op in _OPS:
            found.append((exchanged[0], samples))
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
