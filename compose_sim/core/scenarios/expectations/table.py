"""Judge the expectations of a scenario, one function each, and derive the verdict from all results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from statistics import median
from typing import Any

from compose_sim.core.report.report import Cause, ExpectationResult, Report
from compose_sim.core.scenarios.expectations import (
    FAILED,
    INCONCLUSIVE,
    PASSED,
    Evaluation,
    FinishedRun,
    inconclusive,
    losses_of,
    measured,
)
from compose_sim.core.scenarios.player import StepOutcome
from compose_sim.core.scenarios.scenario import Expectation, Scenario
from compose_sim.core.text import format_seconds
from compose_sim.core.verdict.verdict import EXIT_CODES


def world_sizes(wanted: tuple[int, ...], run: FinishedRun) -> Evaluation:
    """Expect rounds of these sizes, one after another; rounds of the same size in a row count as one."""
    sizes = [int(event.data["world_size"]) for event in run.of("round") if "world_size" in event.data]
    seen = [size for size, _ in groupby(sizes)]
    if not seen:
        return inconclusive("there was no round: the nodes never met")
    return measured(" → ".join(map(str, seen)), seen, good=seen == [size for size, _ in groupby(wanted)])


def no_collective_over(limit: float, run: FinishedRun) -> Evaluation:
    """Expect that no rank waited longer than `limit` seconds in one collective, or in the all-reduce of a backward pass."""
    if not any(True for _ in run.of("init")):
        return inconclusive("no rank joined a process group")
    waits = [event for event in run.of("waited") if isinstance(event.data.get("seconds"), int | float)]
    if not waits:
        return measured("no rank waited long", 0.0, good=True)
    longest = max(waits, key=lambda event: float(event.data["seconds"]))
    seconds = float(longest.data["seconds"])
    detail = f"rank {longest.rank} waited {format_seconds(seconds)} in {longest.data.get('what')}"
    return measured(detail, round(seconds, 3), good=seconds <= limit)


def faults_at_least(least: int, run: FinishedRun) -> Evaluation:
    """Expect at least this many injected faults."""
    done = {event.data.get("id") for event in run.of("fault") if event.data.get("phase") == "done"}
    undone = {event.data.get("id") for event in run.of("refused")}
    count = len(done - undone)
    return measured(f"{count} were injected", count, good=count >= least)


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
    return f"at most {steps} step{'' if steps == 1 else 's'} repeated" if steps else "no reported step was repeated"


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


def on_links_at_most(wanted: Mapping[str, float], run: FinishedRun) -> Evaluation:
    """Expect that shaped links reduce the median of each metric at least to this share of the median without shapes."""
    shares = {}
    for name in wanted:
        plain, shaped = _split_by_links(run, name)
        if not plain or not shaped:
            links = "have a shape" if plain else "have no shape"
            return inconclusive(f"the script prints no two values of '{name}' in a row while links {links}")
        if median(plain) <= 0:
            return inconclusive(f"the median of '{name}' is {median(plain):g} while links have no shape")
        shares[name] = median(shaped) / median(plain)
    words = ", ".join(f"{name} falls to {share:.0%}" for name, share in shares.items())
    good = all(shares[name] <= share for name, share in wanted.items())
    return measured(words, {name: round(share, 4) for name, share in shares.items()}, good=good)


def _split_by_links(run: FinishedRun, name: str) -> tuple[list[float], list[float]]:
    """Return the values of a metric without and with shaped links; the first after a change belongs to neither."""
    values: dict[bool, list[float]] = {False: [], True: []}
    are_shaped, has_changed = False, False
    for event in sorted(run.of("link", "metric"), key=lambda event: event.t):  # they come from two files
        if event.kind == "link":
            are_shaped, has_changed = bool(event.data.get("links")), True
            continue
        value = event.data.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            if not has_changed:
                values[are_shaped].append(float(value))
            has_changed = False
    return values[False], values[True]


def exit_code(wanted: int, run: FinishedRun) -> Evaluation:
    """Expect the exit code that `up` would have."""
    code = run.report.exit_code
    return measured(f"{code}{'' if code == wanted else _why(run)}", code, good=code == wanted)


def verdict(wanted: str, run: FinishedRun) -> Evaluation:
    """Expect this verdict of the run itself."""
    word = run.report.verdict
    return measured(f"{word}{'' if word == wanted else _why(run)}", word, good=word == wanted)


def hang_diagnosed(rank: int, run: FinishedRun) -> Evaluation:
    """Expect a hang that this rank is the cause of."""
    hangs = [*run.of("hang")]
    cause = run.report.cause
    ranks = [event.rank for event in hangs] + ([cause.rank] if cause and cause.kind == "hang" else [])
    if not ranks:
        return measured("no hang was found", None, good=False)
    message = str(hangs[-1].data.get("message", "")) if hangs else cause.message if cause else ""
    return measured(message.partition("\n")[0], ranks[-1], good=rank in ranks)


def nothing_left(wanted: bool, run: FinishedRun) -> Evaluation:
    """Expect that no node, network or process of the run is left; `false` expects that something is."""
    if run.left is None:
        return inconclusive("nobody could look")
    detail = f"left: {', '.join(run.left)}" if run.left else "nothing is left"
    return measured(detail, len(run.left), good=(not run.left) == wanted)


def _why(run: FinishedRun) -> str:
    cause = run.report.cause
    return f": {cause.first_line}" if cause else ""


_JUDGES: dict[str, Callable[[Any, FinishedRun], Evaluation]] = {
    "recovered_within": recovered_within,
    "recoveries_at_least": recoveries_at_least,
    "steps_lost_at_most": steps_lost_at_most,
    "loss_continuous": loss_continuous,
    "world_sizes": world_sizes,
    "no_collective_over": no_collective_over,
    "on_links_at_most": on_links_at_most,
    "exit_code": exit_code,
    "verdict": verdict,
    "hang_diagnosed": hang_diagnosed,
    "faults_at_least": faults_at_least,
    "nothing_left": nothing_left,
}
_OF_THE_END = ("exit_code", "verdict")  # a scenario with one of these says what a good end is
_THE_RUN = "run"  # otherwise the run must pass


def judge_scenario(
    scenario: Scenario, run: FinishedRun, played: Iterable[StepOutcome], others: Mapping[str, Evaluation] | None = None
) -> list[ExpectationResult]:
    """
    Judge every expectation of a scenario; `others` are those that plug-ins have judged.

    Every scenario also expects that its steps were played, and that the run passes unless it expects another end.
    """
    found = others or {}
    results = [
        _result(each.name, wanted_words(each), found.get(each.name) or _JUDGES[each.name](each.wanted, run))
        for each in scenario.expect
    ]
    if not any(each.name in _OF_THE_END for each in scenario.expect):
        results.append(_result(_THE_RUN, PASSED, verdict(PASSED, run)))
    return [*_unplayed(played), *results]


def wanted_words(expectation: Expectation) -> str:
    """Return the value of an expectation, as a person would write it."""
    value = expectation.wanted
    if isinstance(value, bool):
        return str(value).lower()
    if expectation.name in ("recovered_within", "no_collective_over"):
        return format_seconds(value)
    if expectation.name == "loss_continuous":
        return f"{value:.3g}" if value > 1 else f"{value:.0%}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {share:.0%}" for name, share in value.items())
    return " → ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def conclude(report: Report, results: Sequence[ExpectationResult]) -> Report:
    """
    Return the report of a run that played a scenario, with the verdict of its expectations.

    A run that was interrupted, or failed unexpectedly, keeps its own verdict.
    """
    concluded = replace(report, expectations=tuple(results))
    run_failed = any(result.id == _THE_RUN and result.status == FAILED for result in results)
    if report.verdict == "interrupted" or run_failed:
        return concluded
    for word in (FAILED, INCONCLUSIVE):
        first = next((result for result in results if result.status == word), None)
        if first:
            # The cause of a failure says more than that the run should not have failed.
            own = report.cause if first.id in _OF_THE_END else None
            message = f"{first.id} {first.wanted}: {first.detail}"
            cause = own or Cause(kind="expectation", message=message)
            return replace(concluded, verdict=word, exit_code=EXIT_CODES[word], cause=cause)
    return replace(concluded, verdict=PASSED, exit_code=0, cause=None)


def _unplayed(played: Iterable[StepOutcome]) -> list[ExpectationResult]:
    """Return a result for each step that was never played, or was refused: it leaves open what was expected of it."""
    results = []
    for step in played:
        was_refused = step.refused and not (step.chosen and step.times)
        if was_refused or not step.times:
            why = f"refused: {step.refused}" if was_refused else "it was never due"
            results.append(_result("steps", f"step {step.number}", inconclusive(why)))
    return results


def _result(name: str, wanted: str, found: Evaluation) -> ExpectationResult:
    return ExpectationResult(id=name, wanted=wanted, status=found.status, detail=found.detail, measured=found.measured)
