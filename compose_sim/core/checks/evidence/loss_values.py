"""Is a printed number a rank's own loss, or that of all ranks? What a script may make of its losses, computed both ways."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from compose_sim.core.events.observations import Observed, RankObserved

_WINDOWS = (2, 3, 4, 5, 8, 10, 16, 20, 25, 32, 50, 100)
_WEIGHTS = (0.9, 0.95, 0.98, 0.99)
_AROUND, _CHANCE = 50, 0.2  # a match says nothing where one number in five would match by chance
_MOST = 600
_DIGITS = 3


@dataclass(frozen=True, slots=True)
class Match:
    """What a printed number is: of one rank alone, or of all; `others` is what the mean over all ranks would have been."""

    is_own: bool
    others: float


class Losses:
    """The losses of one rank and the mean of all ranks', as a script may print them."""

    def __init__(self, observed: Observed, rank: int) -> None:
        """Pair the losses of all ranks by their order."""
        values = {each.rank: [float(seen["value"]) for seen in each.of("loss")][:_MOST] for each in observed}
        length = min((len(each) for each in values.values()), default=0)
        own = values.get(rank, [])[:length]
        mean = [sum(each[index] for each in values.values()) / len(values) for index in range(length)]
        self.tell_apart = any(
            abs(one - other) > 1e-4 * (abs(one) + abs(other)) for one, other in zip(own, mean, strict=True)
        )
        starts = _starts(observed.ranks[rank], length)
        per_step = _per_step(observed.ranks[rank])
        self._own = sorted(zip(_told(own, starts, per_step), _told(mean, starts, per_step), strict=True))
        self._means = sorted([*_told(mean, starts, per_step), *_smoothed(mean)])

    def match(self, number: str) -> Match | None:
        """What a number is, as far as its printed digits tell; None where it is neither, or may be both, or anything."""
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
            return None if last > first else Match(is_own=False, others=value)
        low, high = self._near(value, _AROUND * slack)
        if high - low > _AROUND * _CHANCE + (last - first):
            return None  # so many numbers lie there that any would match one
        return next((Match(True, mean) for own, mean in self._own[first:last] if abs(own - mean) > 2 * slack), None)

    def _near(self, value: float, slack: float) -> tuple[int, int]:
        return bisect_left(self._own, (value - slack,)), bisect_left(self._own, (value + slack,))


def _starts(rank: RankObserved, length: int) -> list[int]:
    """At which losses epochs begin."""
    starts, seen = {0}, 0
    for each in rank.observations:
        if each.kind == "loss":
            seen += 1
        elif each.kind == "epoch" and each["phase"] == "begun":
            starts.add(seen)
    return sorted(start for start in starts if start < length)


def _per_step(rank: RankObserved) -> int:
    """How many backward passes go into a step, where the script accumulates gradients."""
    steps = max((int(each["step"] or 0) for each in rank.of("step")), default=0)
    losses = sum(1 for _ in rank.of("loss"))
    return max(1, round(losses / steps)) if steps else 1


def _told(values: Sequence[float], starts: Sequence[int], per_step: int) -> list[float]:
    """Single losses, and means and sums since an epoch began; in one order for all ranks."""
    told = [value * factor for value in values for factor in sorted({1, per_step})]
    for start, end in pairwise([*starts, len(values)]):
        told += _running(values[start:end], per_step)
    return told + (list(_running(values, per_step)) if len(starts) > 1 else [])


def _running(values: Sequence[float], per_step: int) -> Iterator[float]:
    total = 0.0
    for count, value in enumerate(values, 1):
        total += value
        yield from (total, total / count, total * per_step / count)


def _smoothed(values: Sequence[float]) -> Iterator[float]:
    """Means of the last few losses, and smoothed ones."""
    for width in _WINDOWS:
        for end in range(width, len(values) + 1):
            yield sum(values[end - width : end]) / width
    for weight in _WEIGHTS:
        smooth = values[0] if values else 0.0
        for value in values:
            smooth = weight * smooth + (1 - weight) * value
            yield smooth
