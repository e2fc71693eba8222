"""Decide whether a printed number is a rank's own loss or the mean over all ranks, by computing both in all usual ways."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from compose_sim.core.events.observations import Observed, RankObserved
from compose_sim.node.records.data import EpochProgress
from compose_sim.node.records.models import LossValue, OptimizerStep

_WINDOWS = (2, 3, 4, 5, 8, 10, 16, 20, 25, 32, 50, 100)
_WEIGHTS = (0.9, 0.95, 0.98, 0.99)
_AROUND, _CHANCE = 50, 0.2  # a match means nothing if one number in five would match by chance
_MOST = 600
_DIGITS = 3


@dataclass(frozen=True, slots=True)
class Match:
    """What a printed number is: `is_own` for one rank's loss, else the mean over all ranks, which is `mean`."""

    is_own: bool
    mean: float


class Losses:
    """The losses of one rank and the means over all ranks, as a script may print them."""

    def __init__(self, observed: Observed, rank: int) -> None:
        """Pair the losses of all ranks by position."""
        values = {each.rank: [seen.value for seen in each.of(LossValue)][:_MOST] for each in observed}
        length = min((len(each) for each in values.values()), default=0)
        own = values.get(rank, [])[:length]
        mean = [sum(each[index] for each in values.values()) / len(values) for index in range(length)]
        self.differ = any(
            abs(one - other) > 1e-4 * (abs(one) + abs(other)) for one, other in zip(own, mean, strict=True)
        )
        starts = _starts(observed.ranks[rank], length)
        per_step = _per_step(observed.ranks[rank])
        self._own = sorted(zip(_printed(own, starts, per_step), _printed(mean, starts, per_step), strict=True))
        self._means = sorted([*_printed(mean, starts, per_step), *_smoothed(mean)])

    def match(self, number: str) -> Match | None:
        """Return what a number is, judging by its digits; None if it is neither, may be both, or if anything would match."""
        mantissa, _, exponent = number.lower().partition("e")
        decimals = len(mantissa.partition(".")[2])
        if len(mantissa.replace(".", "").strip("+-0")) < _DIGITS:
            return None
        value = float(number)
        slack = 0.51 * 10.0 ** (int(exponent or 0) - decimals) + 1e-6 * abs(value)
        index = bisect_left(self._means, value - slack)
        is_shared = index < len(self._means) and self._means[index] <= value + slack
        first, last = self._near(value, slack)
        if is_shared:
            return None if last > first else Match(is_own=False, mean=value)
        low, high = self._near(value, _AROUND * slack)
        if high - low > _AROUND * _CHANCE + (last - first):
            return None  # so many numbers are close that any would match one
        return next((Match(True, mean) for own, mean in self._own[first:last] if abs(own - mean) > 2 * slack), None)

    def _near(self, value: float, slack: float) -> tuple[int, int]:
        return bisect_left(self._own, (value - slack,)), bisect_left(self._own, (value + slack,))


def _starts(rank: RankObserved, length: int) -> list[int]:
    """Return the positions of the losses at which epochs begin."""
    starts, seen = {0}, 0
    for each in rank.of(LossValue, EpochProgress):
        if isinstance(each, LossValue):
            seen += 1
        elif each.phase == "begun":
            starts.add(seen)
    return sorted(start for start in starts if start < length)


def _per_step(rank: RankObserved) -> int:
    """Return the number of backward passes per step: more than one if the script accumulates gradients."""
    steps = max((each.step for each in rank.of(OptimizerStep)), default=0)
    losses = sum(1 for _ in rank.of(LossValue))
    return max(1, round(losses / steps)) if steps else 1


def _printed(values: Sequence[float], starts: Sequence[int], per_step: int) -> list[float]:
    """Return single losses, and means and sums since an epoch began, in the same order for all ranks."""
    printed = [value * factor for value in values for factor in sorted({1, per_step})]
    for start, end in pairwise([*starts, len(values)]):
        printed += _running(values[start:end], per_step)
    return printed + (list(_running(values, per_step)) if len(starts) > 1 else [])


def _running(values: Sequence[float], per_step: int) -> Iterator[float]:
    total = 0.0
    for count, value in enumerate(values, 1):
        total += value
        yield from (total, total / count, total * per_step / count)


def _smoothed(values: Sequence[float]) -> Iterator[float]:
    """Yield means of the last few losses, and exponential moving averages."""
    for width in _WINDOWS:
        for end in range(width, len(values) + 1):
            yield sum(values[end - width : end]) / width
    for weight in _WEIGHTS:
        smooth = values[0] if values else 0.0
        for value in values:
            smooth = weight * smooth + (1 - weight) * value
            yield smooth
