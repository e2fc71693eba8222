"""Did the run go on after each loss: soon, with few steps lost, and where it was?"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from compose_sim.core.events.events import Event
from compose_sim.core.scenarios.expectations import Course, Judged, inconclusive, losses_of, measured
from compose_sim.core.units import format_seconds

_LOSSES_COMPARED = 3  # after a restart: one alone may be an odd batch


def recovered_within(limit: float, course: Course) -> Judged:
    """Every loss was followed by a new step, the slowest one within so many seconds."""
    recoveries = [event.data for event in course.of("recovered")]
    never = [loss.text for loss in losses_of(course) if loss.recovered is None]
    if never and course.report.verdict != "passed":
        return measured(f"never, from: {never[0]}", None, good=False)
    if not recoveries:
        return inconclusive(f"the run ended before it needed to: {never[0]}" if never else "nothing was lost")
    seconds = [float(data["seconds"]) for data in recoveries]
    worst = max(seconds)
    times = "" if len(seconds) == 1 else f" {len(seconds)} times, each"
    return measured(
        f"recovered{times} in {format_seconds(worst)}{' at most' if times else ''}",
        round(worst, 3),
        good=worst <= limit,
    )


def recoveries_at_least(least: int, course: Course) -> Judged:
    """The run went on so often."""
    count = sum(1 for _ in course.of("recovered"))
    return measured("1 recovery" if count == 1 else f"{count} recoveries", count, good=count >= least)


def steps_lost_at_most(most: int, course: Course) -> Judged:
    """No recovery began further back than so many steps."""
    recoveries = [*course.of("recovered")]
    if not recoveries:
        return inconclusive("the run never recovered from anything")
    lost = [event.data.get("steps_lost") for event in recoveries]
    known = [int(steps) for steps in lost if steps is not None]
    if known and max(known) > most:
        return measured(_again(max(known)), max(known), good=False)
    if len(known) < len(lost):
        return inconclusive('the script prints no steps, as {"step": 12, "loss": 0.3} does')
    return measured(_again(max(known)), max(known), good=True)


def _again(steps: int) -> str:
    return f"{steps} step{'' if steps == 1 else 's'} at most to be made again" if steps else "no step to be made again"


def loss_continuous(tolerance: float, course: Course) -> Judged:
    """After each restart the loss at a step is what it was there before, or at the last step before it."""
    rounds = _losses_by_round(course)
    told = [losses for losses in rounds if losses]
    if not told:
        return inconclusive('the script prints no loss, as {"step": 12, "loss": 0.3} does')
    if len(told) < 2:
        return inconclusive("no loss was printed after a restart")
    scale = abs(told[0][0][1])
    jumps = [_jump(before, after) for before, after in pairwise(_accumulated(told))]
    worst = max(jumps, key=lambda jump: jump[0])
    share = worst[0] / scale if scale else 0.0
    detail = f"at step {worst[3]} {worst[2]:.4g} after {worst[1]:.4g}, a jump of {share:.1%} of the first loss"
    return measured(detail, round(share, 4), good=share <= tolerance)


_Losses = list[tuple[int, float]]  # step and loss, as they were printed


def _losses_by_round(course: Course) -> list[_Losses]:
    rounds: list[_Losses] = [[]]
    for event in course.of("round", "metric"):
        if event.kind == "round":
            rounds.append([])
        elif event.rank == _speaker(course):
            loss = event.data.get("loss")
            if isinstance(loss, int | float) and not isinstance(loss, bool):
                rounds[-1].append((int(event.data["step"]), float(loss)))
    return rounds


def _speaker(course: Course) -> int | None:
    """The rank whose losses are compared: the first of those that print any."""
    ranks: Sequence[Event] = [event for event in course.of("metric") if "loss" in event.data]
    return min((event.rank for event in ranks if event.rank is not None), default=None)


def _accumulated(rounds: list[_Losses]) -> list[_Losses]:
    """Each round with the ones before it in front, but for the first; pairs of neighbours are before and after."""
    return [[each for losses in rounds[: index + 1] for each in losses] for index in range(len(rounds))]


def _jump(before: _Losses, after: _Losses) -> tuple[float, float, float, int]:
    """The median jump of the first losses after a restart, with one that stands for it: before, after, and at which step."""
    new = after[len(before) :][:_LOSSES_COMPARED]
    jumps = []
    for step, loss in new:
        earlier = [pair for pair in before if pair[0] <= step] or before[:1]
        nearest = max(pair[0] for pair in earlier)
        reference = next(value for at, value in reversed(earlier) if at == nearest)
        jumps.append((abs(loss - reference), reference, loss, step))
    middle = median(jump[0] for jump in jumps)
    return min(jumps, key=lambda jump: (abs(jump[0] - middle), -jump[0]))
