"""Record, in `check`, after how many steps a schedule of the learning rate ends, and how many steps it made."""

from __future__ import annotations

import weakref
from typing import Any, Callable

from ...records.models import ScheduleMade
from ...records.record import Place
from ..context import RankContext, place
from ..torch_hooks import points

_FOLLOWED = "schedules.followed"
_MAX_STEPS, _MAX_SCHEDULES = 10_000, 4
_HORIZONS = {"OneCycleLR": "total_steps", "CosineAnnealingLR": "T_max"}


class _Followed:
    """A schedule, which the script may free, and its steps up to the last step of an optimizer."""

    def __init__(self, schedule: Any, at: Place | None) -> None:
        self.schedule, self.at, self.type = weakref.ref(schedule), at, type(schedule).__name__
        self.steps = 0
        self.ends: int | None = None  # not looked at yet
        self.latest = 0  # steps between the last two of an optimizer: as many follow the last one, if it is freed then

    def look(self) -> None:
        schedule = self.schedule()
        if schedule is not None:
            self.latest = int(schedule.last_epoch) - self.steps
            self.steps += self.latest
            self.ends = end_of(schedule) if self.ends is None else self.ends

    @property
    def made(self) -> int:
        schedule = self.schedule()
        return self.steps + self.latest if schedule is None else int(schedule.last_epoch)


def begin(context: RankContext) -> None:
    if context.mode == "record":
        points.SCHEDULE_MADE.subscribe(_made)
        points.BEFORE_STEP.subscribe(_count)


def end(context: RankContext) -> None:
    for each in context.memory.get(_FOLLOWED, ()):
        if each.ends:
            context.note(ScheduleMade(each.type, each.ends, each.made, each.at))


def _made(context: RankContext, call: points.TorchCall) -> points.Steps:
    yield
    followed: list[_Followed] = context.memory.setdefault(_FOLLOWED, [])
    if len(followed) < _MAX_SCHEDULES:
        followed.append(_Followed(call.owner, place()))


def _count(context: RankContext, *_: Any) -> None:
    for each in context.memory.get(_FOLLOWED, ()):
        each.look()


def end_of(schedule: Any) -> int:
    """Return after how many steps a schedule ends; 0 if that is not known."""
    for each in type(schedule).__mro__:
        if each.__name__ in _HORIZONS:
            return int(getattr(schedule, _HORIZONS[each.__name__]))
    lambdas: list[Any] = getattr(schedule, "lr_lambdas", [])
    return _settles(lambdas[0]) if len({*map(id, lambdas)}) == 1 else 0


def _settles(rate: Callable[[int], float]) -> int:
    """Return from which step on a function gives the same number; 0 if it does so from the start, or never."""
    try:
        last = rate(_MAX_STEPS)
        low, high = 0, 1
        while high < _MAX_STEPS and rate(high) != last:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if rate(middle) == last else (middle, high)
    except Exception:  # noqa: BLE001 - a function of the script need not know steps that it never makes
        return 0
    return high if 1 < high < _MAX_STEPS else 0
