"""The report is a typed value with a published schema: every report validates, and reading it back loses nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError

from compose_sim.core.checks import Case
from compose_sim.core.checks.run import run_checks
from compose_sim.core.events.observations import Observed
from compose_sim.core.plan.model import PlannedPort
from compose_sim.core.report.make_report import make_report
from compose_sim.core.report.report import HorovodTimeline, Report, ScenarioReport, ScenarioStepReport
from compose_sim.core.scenarios.expectations import FinishedRun
from compose_sim.core.scenarios.expectations.table import conclude, judge_scenario
from compose_sim.core.scenarios.scenario import Scenario
from compose_sim.core.state.fold import fold_all
from tests.builders import ROOT, a_plan, a_report, an_event
from tests.core.story import Story
from tests.report_schema import SCHEMA_FILE, validate_report

ELASTIC = a_plan(nodes=3, elastic="2:3")


def a_story() -> Story:
    """Two of three nodes continue after a fault."""
    story = Story(ELASTIC).starts(0.5, 0, 1, 2).round(1.0, 0, 1, 2).trains(2.0, 1, 20)
    story.tell(3.0, "usage", 0, cpu_s=1.5, memory_bytes=1 << 20, received_bytes=7, sent_bytes=8, gpu_memory_bytes=9)
    story.fault(5.0, "fault-1", "kill", 1).lost(5.1, 1).stopped(5.2, {1: 137}).round(6.0, 0, 2).trains(7.0, 18, 30)
    return story.tell(7.1, "recovered", id="fault-1", cause="x", seconds=2.0, world_size=2, steps_lost=2, generation=1)


def stopped(reason: str, cause: str) -> Report:
    """Return the report of a run that composesim stopped."""
    story = a_story().tell(9.0, "stopping", reason=reason, cause=cause, message="why", traceback="where")
    return make_report(story.plan, story.state)


def with_torch(version: Any) -> Report:
    """Return the report of a run whose ranks told this version of torch."""
    plan = a_plan(nodes=1)
    return make_report(plan, fold_all(plan, [an_event("environment", 1.0, rank=0, torch=version)]))


def a_timeline() -> HorovodTimeline:
    return HorovodTimeline(
        file="logs/timeline.json", seconds=1.5, compute=0.5, all_reduce=0.25, idle=0.25, idle_by_rank=(0.5, 0.0)
    )


def played(report: Report) -> Report:
    """Return the report of a run of a scenario of which one step was refused."""
    scenario = Scenario.model_validate({"expect": [{"verdict": "passed"}, {"world_sizes": [3, 2]}]})
    results = judge_scenario(scenario, FinishedRun(events=(), report=report), ())
    step = ScenarioStepReport(step=1, times=0, refused="node-1 had ended")
    run = {"run_verdict": report.verdict, "run_exit_code": report.exit_code}
    return replace(conclude(report, results), scenario=ScenarioReport(name="x", seed=1, steps=(step,), **run))


def reports() -> Iterator[Report]:
    story = a_story()
    yield make_report(story.plan, story.state)
    yield make_report(story.plan, story.ended(20.0, passed=True).stopped(20.5, {0: 0, 2: 0}).state)
    driven = replace(a_plan(nodes=2), is_driven=True)
    ready = an_event("ready", 1.0, node="driver", words="2 nodes")
    yield make_report(driven, fold_all(driven, [an_event("started", 0.5, cpus=2), ready]), timeline=a_timeline())
    published = a_plan(nodes=2, image="torch:1")
    ports = (PlannedPort(name="board", port=8888, host_port=9999, login="token {token}"),)
    published = replace(published, master=replace(published.master, ports=ports))
    yield make_report(published, fold_all(published, []))
    yield from (stopped(*reason) for reason in (("interrupted", ""), ("timeout", "timeout"), ("hang", "hang")))
    yield stopped("engine", "engine")
    checks = run_checks(Case(observed=Observed(ranks={}), verdict="hung"))
    yield replace(stopped("hang", "hang"), checks=tuple(result.to_report() for result in checks))
    yield with_torch("2.16.0")
    yield played(stopped("failure", "exit"))
    yield played(a_report())


def test_the_published_schema_is_valid() -> None:
    """tests/test_reference.py compares it with the code."""
    Draft202012Validator.check_schema(json.loads(SCHEMA_FILE.read_text()))


def test_every_field_is_described() -> None:
    schema = json.loads(SCHEMA_FILE.read_text())
    objects = {"Report": schema, **schema["$defs"]}

    described = {
        f"{name}.{key}": "description" in value
        for name, each in objects.items()
        for key, value in each["properties"].items()
    }
    assert [name for name, is_described in described.items() if not is_described] == []


def test_the_page_lists_every_field() -> None:
    page = (ROOT / "docs" / "run-folder.md").read_text()
    rows = [line.split("|")[1] for line in page.partition("## The report")[2].splitlines() if line.startswith("| `")]

    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(field.name for field in fields(Report))


@pytest.mark.parametrize("report", [*reports()], ids=lambda report: report.verdict)
def test_a_report_validates_and_is_read_back_as_it_was(report: Report) -> None:
    text = json.dumps(report.to_dict())

    validate_report(json.loads(text))
    assert Report.from_dict(json.loads(text)) == Report.from_dict(report.to_dict())
    assert Report.from_dict(json.loads(text)).to_dict() == json.loads(text)


@pytest.mark.parametrize(
    ("version", "torch_range"),
    [
        ("2.13.0+cpu", "tested"),
        ("2.16.0a0", "newer"),
        ("2.0.1", "older"),
        ("main", None),
        (None, None),
        ([2, 13], None),
    ],
    ids=str,
)
def test_a_report_states_whether_the_version_of_torch_is_tested(version: Any, torch_range: str | None) -> None:
    assert with_torch(version).torch_range == torch_range


def test_every_kind_of_verdict_is_covered() -> None:
    verdicts = {report.verdict for report in reports()}

    assert verdicts == {"passed", "failed", "inconclusive", "hung", "timeout", "interrupted"}


def test_fields_of_a_newer_version_are_ignored_and_those_of_an_older_one_may_be_missing() -> None:
    values = a_report().to_dict()
    newer = {**values, "new": 1, "nodes": [{**node, "new": 1} for node in values["nodes"]]}
    older = {name: value for name, value in values.items() if name not in ("timeline", "expectations", "scenario")}
    del older["timings"]["started_at"]

    assert Report.from_dict(newer) == Report.from_dict(older) == a_report()


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"verdict": "fine"}, "verdict is 'fine'"),
        ({"nodes": [{"name": "node-0", "ranks": ["0"]}]}, "nodes[0].ranks[0] is '0'"),
        ({"nodes": [{}]}, "nodes[0].name is missing"),
        ({"exit_code": True}, "exit_code is True"),
        ({"cause": []}, "cause is []"),
        ({"elastic": [1]}, "elastic is [1]"),
    ],
)
def test_a_value_of_the_wrong_type_is_named(changes: dict[str, Any], place: str) -> None:
    values = {**a_report().to_dict(), **changes}

    with pytest.raises(ValueError, match="is") as caught:
        Report.from_dict(values)
    assert str(caught.value) == place
    with pytest.raises(ValidationError):
        validate_report(values)


@pytest.mark.parametrize("values", [None, [], "passed", {}])
def test_what_is_no_report_is_refused(values: Any) -> None:
    with pytest.raises(ValueError, match="is"):
        Report.from_dict(values)
