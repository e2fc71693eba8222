"""Each expectation passes, fails and is inconclusive when it should be."""

from __future__ import annotations

from typing import Any

import pytest

from compose_sim.core.events.events import Event
from compose_sim.core.report.report import Cause, ExpectationResult, Report
from compose_sim.core.scenarios.expectations import FinishedRun
from compose_sim.core.scenarios.expectations.table import conclude, judge_scenario
from compose_sim.core.scenarios.player import StepOutcome
from compose_sim.core.scenarios.scenario import Scenario
from tests.builders import a_report


def happened(kind: str, t: float = 0.0, *, rank: int | None = None, **data: Any) -> Event:
    return Event(t=t, kind=kind, rank=rank, data=data)


def recovered(t: float, seconds: float, lost: int | None = 5, fault: str | None = None) -> Event:
    return happened("recovered", t, id=fault, seconds=seconds, steps_lost=lost)


def killed(t: float = 1.0, fault: str = "play-1") -> Event:
    return happened("fault", t, id=fault, phase="begun", loses=["node-1"], text="node-1 killed")


def losses(*values: tuple[int, float]) -> list[Event]:
    return [happened("metric", rank=0, step=step, loss=loss) for step, loss in values]


def rounds(*sizes: int) -> list[Event]:
    return [happened("round", float(number), world_size=size) for number, size in enumerate(sizes)]


def speeds(*values: float, links: tuple[str, ...] | None = None) -> list[Event]:
    """Return metrics that a driver prints after a change of links."""
    change = [] if links is None else [happened("link", links=[*links])]
    return [*change, *(happened("metric", step=1, speed=value) for value in values)]


PASSED = a_report()
FAILED = a_report(verdict="failed", cause=Cause(rank=1, kind="exception", message="boom\nx"))
DONE = happened("fault", 1.5, id="play-1", phase="done")
BEFORE = [*rounds(4), *losses((5, 2.0), (10, 1.0), (15, 0.5))]
HANG = happened("hang", rank=2, message="rank 2 sleeps\nmore")
SLOWER, SLOW = {"on_links_at_most": {"speed": "60%"}}, ("1gbit",)

CASES = [
    # expectation, events, report, status, measured
    ({"recovered_within": "3s"}, [killed(), recovered(2, 1.2)], PASSED, "passed", 1.2),
    ({"recovered_within": "3s"}, [killed(), recovered(2, 1.2), recovered(9, 3.5)], PASSED, "failed", 3.5),
    ({"recovered_within": "3s"}, [killed()], FAILED, "failed", None),
    ({"recovered_within": "3s"}, [killed(), recovered(2, 1.2), killed(5, "play-2")], FAILED, "failed", None),
    ({"recovered_within": "3s"}, [killed()], PASSED, "inconclusive", None),
    ({"recovered_within": "3s"}, [], PASSED, "inconclusive", None),
    ({"recoveries_at_least": 2}, [recovered(1, 1), recovered(2, 1)], PASSED, "passed", 2),
    ({"recoveries_at_least": 2}, [recovered(1, 1)], PASSED, "failed", 1),
    ({"steps_lost_at_most": 20}, [recovered(1, 1, 20)], PASSED, "passed", 20),
    ({"steps_lost_at_most": 20}, [recovered(1, 1, 3), recovered(1, 1, 21)], PASSED, "failed", 21),
    ({"steps_lost_at_most": 20}, [recovered(1, 1, 3), recovered(1, 1, None)], PASSED, "inconclusive", None),
    ({"steps_lost_at_most": 20}, [], PASSED, "inconclusive", None),
    ({"loss_continuous": "10%"}, [*BEFORE, *rounds(3), *losses((15, 0.55), (20, 0.4))], PASSED, "passed", 0.05),
    ({"loss_continuous": "10%"}, [*BEFORE, *rounds(3), *losses((20, 2.0), (25, 1.9))], PASSED, "failed", 0.75),
    ({"loss_continuous": "10%"}, BEFORE, PASSED, "inconclusive", None),
    ({"loss_continuous": "10%"}, rounds(4, 3), PASSED, "inconclusive", None),
    ({"world_sizes": [4, 3, 4]}, rounds(4, 4, 3, 4), PASSED, "passed", [4, 3, 4]),
    ({"world_sizes": [4, 3, 4]}, rounds(4, 3), PASSED, "failed", [4, 3]),
    ({"world_sizes": [4]}, [], PASSED, "inconclusive", None),
    ({"no_collective_over": "2s"}, [happened("init"), happened("waited", rank=1, what="barrier", seconds=1.5)], PASSED, "passed", 1.5),
    ({"no_collective_over": "2s"}, [happened("init"), happened("waited", rank=1, what="barrier", seconds=2.5)], PASSED, "failed", 2.5),
    ({"no_collective_over": "2s"}, [happened("init")], PASSED, "passed", 0.0),
    ({"no_collective_over": "2s"}, [], PASSED, "inconclusive", None),
    (SLOWER, [*speeds(9, 10, 11), *speeds(9, 5, 4, 5, links=SLOW)], PASSED, "passed", {"speed": 0.5}),
    (SLOWER, [*speeds(8), *speeds(6, 2, links=SLOW), *speeds(2, 4, links=())], PASSED, "passed", {"speed": 0.3333}),
    (SLOWER, [*speeds(10), *speeds(10, 9, links=SLOW)], PASSED, "failed", {"speed": 0.9}),
    (SLOWER, [*speeds(10), *speeds(9, links=SLOW)], PASSED, "inconclusive", None),
    (SLOWER, [*speeds(0, 0), *speeds(9, 9, links=SLOW)], PASSED, "inconclusive", None),
    (SLOWER, [], PASSED, "inconclusive", None),
    ({"exit_code": 1}, [], FAILED, "passed", 1),
    ({"exit_code": 0}, [], FAILED, "failed", 1),
    ({"verdict": "failed"}, [], FAILED, "passed", "failed"),
    ({"verdict": "passed"}, [], FAILED, "failed", "failed"),
    ({"hang_diagnosed": 2}, [HANG], PASSED, "passed", 2),
    ({"hang_diagnosed": 1}, [HANG], PASSED, "failed", 2),
    ({"hang_diagnosed": 1}, [], PASSED, "failed", None),
    ({"faults_at_least": 1}, [killed(), DONE], PASSED, "passed", 1),
    ({"faults_at_least": 1}, [killed(), DONE, happened("refused", 2, id="play-1", message="no")], PASSED, "failed", 0),
    ({"nothing_left": True}, [], PASSED, "passed", 0),
]  # fmt: skip


@pytest.mark.parametrize(("wanted", "events", "report", "status", "value"), CASES)
def test_an_expectation_is_judged(
    wanted: dict[str, Any], events: list[Event], report: Report, status: str, value: Any
) -> None:
    result = judge(wanted, events=events, report=report)

    assert (result.status, result.measured) == (status, value)
    assert result.detail


def judge(wanted: dict[str, Any], **run: Any) -> ExpectationResult:
    """Return the result of one expectation."""
    values = {"events": (), "report": PASSED, "left": (), **run}
    scenario = Scenario.model_validate({"expect": [wanted]})
    return judge_scenario(scenario, FinishedRun(**{**values, "events": tuple(values["events"])}), ())[0]


def test_what_is_left_is_named_and_what_nobody_looked_for_is_open() -> None:
    wanted = {"nothing_left": True}

    assert judge(wanted, left=("node-1",)).detail == "left: node-1"
    assert judge(wanted, left=("node-1",)).status == "failed"
    assert judge(wanted, left=None).status == "inconclusive"


def concluded(
    expect: list[dict[str, Any]], report: Report, *played: StepOutcome, events: list[Event] | None = None
) -> Any:
    """Return (verdict, exit code, kind of the cause) of a scenario."""
    run = FinishedRun(events=tuple(events or ()), report=report, left=())
    end = conclude(report, judge_scenario(Scenario.model_validate({"expect": expect}), run, played))
    return end.verdict, end.exit_code, end.cause and end.cause.kind


ONCE = StepOutcome(number=1, times=1)


def test_the_end_of_a_scenario_is_that_of_its_expectations() -> None:
    assert concluded([], PASSED, ONCE) == ("passed", 0, None)
    assert concluded([{"verdict": "failed"}], FAILED, ONCE) == ("passed", 0, None)
    assert concluded([{"faults_at_least": 1}], PASSED, ONCE) == ("failed", 1, "expectation")
    assert concluded([{"steps_lost_at_most": 1}], PASSED, ONCE) == ("inconclusive", 3, "expectation")


def test_a_run_that_failed_unexpectedly_ends_as_it_did_by_itself() -> None:
    hung = a_report(verdict="hung", cause=Cause(rank=1, kind="hang", message="stands"))

    assert concluded([], FAILED, ONCE) == ("failed", 1, "exception")
    assert concluded([{"nothing_left": True}], hung, ONCE) == ("hung", 124, "hang")
    assert concluded([{"faults_at_least": 1}], hung, ONCE) == ("hung", 124, "hang")
    assert concluded([{"exit_code": 0}], hung, ONCE) == ("failed", 1, "hang")
    interrupted = a_report(verdict="interrupted")
    assert concluded([{"faults_at_least": 1}], interrupted, ONCE) == ("interrupted", 130, None)


def test_a_step_that_was_not_played_leaves_the_scenario_open() -> None:
    never, refused = StepOutcome(number=1, times=0), StepOutcome(number=1, times=1, refused="no netem")

    assert concluded([], PASSED, never) == ("inconclusive", 3, "expectation")
    assert concluded([], PASSED, refused) == ("inconclusive", 3, "expectation")
    assert concluded([], PASSED, StepOutcome(number=1, times=9, refused="node-1 had ended", chosen=True)) == (
        "passed",
        0,
        None,
    )
