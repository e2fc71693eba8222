"""Judge how the run recovered from each loss: how soon, with how many lost steps, and with which loss values."""

from __future__ import annotations

from itertools import pairwise
from statistics import median

from compose_sim.core.scenarios.expectations import Evaluation, FinishedRun, inconclusive, losses_of, measured
from compose_sim.core.units import format_seconds

_LOSSES_COMPARED = 3  # after a restart, because a single batch may be unusual


def recovered_within(limit: float, run: FinishedRun) -> Evaluation:
    """Expect a new step within `limit` seconds of every loss."""
    recoveries = [event.data for event in run.of("recovered")]
    never = [loss.text for loss in losses_of(run) if loss.recovered is None]
    if never and run.report.verdict != "passed":
        return measured(f"never, from: {never[0]}", None, good=False)
    if not recoveries:
        return inconclusive(f"the run ended before it had to recover from: {never[0]}" if never else "nothing was lost")
    seconds = [float(data["seconds"]) for data in recoveries]
    worst = max(seconds)
    times = "" if len(seconds) == 1 else f" {len(seconds)} times, each"
    detail = f"recovered{times} in {format_seconds(worst)}{' at most' if times else ''}"
    return measured(detail, round(worst, 3), good=worst <= limit)


def recoveries_at_least(least: int, run: FinishedRun) -> Evaluation:
    """Expect at least this many recoveries."""
    count = sum(1 for _ in run.of("recovered"))
    return measured("1 recovery" if count == 1 else f"{count} recoveries", count, good=count >= least)


def steps_lost_at_most(most: int, run: FinishedRun) -> Evaluation:
    """Expect that no recovery repeated more than `most` steps."""
    recoveries = [*run.of("recovered")]
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
    return f"at most {steps} step{'' if steps == 1 else 's'} repeated" if steps else "no step was repeated"


def loss_continuous(tolerance: float, run: FinishedRun) -> Evaluation:
    """Expect that the loss at a step after each restart is the loss at that step before, or at the last step before it."""
    rounds = [losses for losses in _losses_by_round(run) if losses]
    if not rounds:
        return inconclusive('the script prints no loss, as {"step": 12, "loss": 0.3} does')
    if len(rounds) < 2:
        return inconclusive("no loss was printed after a restart")
    scale = abs(rounds[0][0][1])
    jumps = [_jump(before, after) for before, after in pairwise(_accumulated(rounds))]
    worst = max(jumps, key=lambda jump: jump[0])
    share = worst[0] / scale if scale else 0.0
    detail = f"at step {worst[3]} {worst[2]:.4g} after {worst[1]:.4g}, a jump of {share:.1%} of the first loss"
    return measured(detail, round(share, 4), good=share <= tolerance)


_Losses = list[tuple[int, float]]  # step and loss, as they were printed


def _losses_by_round(run: FinishedRun) -> list[_Losses]:
    """Return the losses that the first rank that prints any has printed in each round."""
    printing = [event.rank for event in run.of("metric") if "loss" in event.data and event.rank is not None]
    first = min(printing, default=None)
    rounds: list[_Losses] = [[]]
    for event in run.of("round", "metric"):
        if event.kind == "round":
            rounds.append([])
        elif event.rank == first:
            loss = event.data.get("loss")
            if isinstance(loss, int | float) and not isinstance(loss, bool):
                rounds[-1].append((int(event.data["step"]), float(loss)))
    return rounds


def _accumulated(rounds: list[_Losses]) -> list[_Losses]:
    """Return each round with the rounds before it in front."""
    return [[each for losses in rounds[: index + 1] for each in losses] for index in range(len(rounds))]


def _jump(before: _Losses, after: _Losses) -> tuple[float, float, float, int]:
    """Return the median jump of the first losses after a restart: its size, the loss before and after, and the step."""
    new = after[len(before) :][:_LOSSES_COMPARED]
    jumps = []
    for step, loss in new:
        earlier = [pair for pair in before if pair[0] <= step] or before[:1]
        nearest = max(pair[0] for pair in earlier)
        reference = next(value for at, value in reversed(earlier) if at == nearest)
        jumps.append((abs(loss - reference), reference, loss, step))
    middle = median(jump[0] for jump in jumps)
    return min(jumps, key=lambda jump: (abs(jump[0] - middle), -jump[0]))
