"""Map each expectation to the function that judges it, and derive the verdict from all results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from compose_sim.core.report.report import Cause, ExpectationResult, Report
from compose_sim.core.scenarios.expectations import FAILED, INCONCLUSIVE, PASSED, Evaluation, FinishedRun, inconclusive
from compose_sim.core.scenarios.expectations.ending import exit_code, hang_diagnosed, nothing_left, verdict
from compose_sim.core.scenarios.expectations.metrics import on_links_at_most
from compose_sim.core.scenarios.expectations.recovery import (
    loss_continuous,
    recovered_within,
    recoveries_at_least,
    steps_lost_at_most,
)
from compose_sim.core.scenarios.expectations.world import faults_at_least, no_collective_over, world_sizes
from compose_sim.core.scenarios.player import StepOutcome
from compose_sim.core.scenarios.scenario import Expectation, Scenario
from compose_sim.core.units import format_seconds
from compose_sim.core.verdict.verdict import EXIT_CODES

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


def judge_scenario(scenario: Scenario, run: FinishedRun, played: Iterable[StepOutcome]) -> list[ExpectationResult]:
    """
    Judge every expectation of a scenario.

    Every scenario also expects that its steps were played, and that the run passes unless it expects another end.
    """
    results = [_result(each.name, wanted_words(each), _JUDGES[each.name](each.wanted, run)) for each in scenario.expect]
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
