"""Find losses that are sums, divided by a count that the script itself adds up over all ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from compose_sim.core.events.observations import Observed, RankObserved
from compose_sim.node.records.gradients import SketchedStep
from compose_sim.node.records.process_groups import Collective

_NEAR = 1e-4
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
                if count > 1 and abs(number * count - times) < _NEAR * times:
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
        if (
            len(together[0].group) == world_size
            and len({(each.op, each.at, len(each.values)) for each in together}) == 1
        ):
            yield from map(sum, zip(*(each.values for each in together), strict=True))
