"""Read by which counts of samples or targets the ranks divide their losses, of one rank or of all of them together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from compose_sim.core.checks.sketches import optimizers
from compose_sim.core.checks.tolerances import ROUNDING_32_BIT_SUM
from compose_sim.core.events.observations import Observed, RankObserved
from compose_sim.node.records.gradients import SketchedStep
from compose_sim.node.records.process_groups import Collective
from compose_sim.node.records.record import Place

_ADDED = ("all_reduce", "all_gather", "all_gather_into_tensor")
Exchanged = list[Collective]  # before one step


@dataclass(frozen=True, slots=True, kw_only=True)
class DividedLoss:
    """In one step, the loss of each rank was a sum over its samples times `times` and divided by `count`, that of all ranks."""

    step: SketchedStep
    count: float
    times: float


def divided_losses(observed: Observed) -> Iterator[DividedLoss]:
    """Yield the steps before which the losses of all ranks were divided by such a count."""
    by_rank = [_steps(rank) for rank in observed]
    for steps in zip(*by_rank, strict=False):
        numbers = {step.sum_times for step, _ in steps}
        number = next(iter(numbers))
        if len(numbers) > 1 or not number:
            continue
        for count in _sums([exchanged for _, exchanged in steps], observed.world_size):
            for times in (1.0, float(observed.world_size)):
                if count > 1 and abs(number * count - times) < ROUNDING_32_BIT_SUM * times:
                    yield DividedLoss(step=steps[0][0], count=count, times=times)


def _steps(rank: RankObserved) -> list[tuple[SketchedStep, Exchanged]]:
    found: list[tuple[SketchedStep, Exchanged]] = []
    exchanged: Exchanged = []
    for each in rank.of(Collective, SketchedStep):
        if isinstance(each, SketchedStep):
            found.append((each, exchanged))
            exchanged = []
        elif each.values and each.op in _ADDED and each.reduce is None:
            exchanged.append(each)
    return found


def _sums(exchanged: Sequence[Exchanged], world_size: int) -> Iterator[float]:
    """Yield the sums over ranks of the numbers that all of them exchanged."""
    for together in zip(*exchanged, strict=False):
        calls = {(each.op, each.at, len(each.values)) for each in together}
        if len(together[0].group) == world_size and len(calls) == 1:
            yield from map(sum, zip(*(each.values for each in together), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedStep:
    """One step of all ranks, and by which number each divided the loss of one of its samples or targets."""

    at: Place | None
    counts: Mapping[int, float]  # by rank
    is_sum: bool  # whether the script divides, rather than a loss function that takes the mean

    @property
    def ratio(self) -> float:
        return max(self.counts.values()) / min(self.counts.values())


def counted_steps(observed: Observed) -> Iterator[CountedStep]:
    """Yield the steps in which every rank counted its targets."""
    for optimizer in optimizers(observed):
        for _, steps in sorted(optimizer.steps.items()):
            counts = {rank: 1 / step.each_times for rank, step in steps.items() if step.each_times}
            if len(counts) == observed.world_size:
                is_sum = all(step.sum_times for step in steps.values())
                yield CountedStep(at=steps[min(steps)].at, counts=counts, is_sum=is_sum)
