"""An attempt is judged by evidence: what cannot be judged is not passed, and an empty script fails."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from compose_sim.core.events.observations import Observed, RankObserved
from compose_sim.core.report.report import Cause, CheckResult, NodeReport, Place
from compose_sim.node.records.models import LossValue, OptimizerStep
from compose_sim.node.records.process_groups import DdpForward
from compose_sim.plugins.learn.core.lesson import Lesson, parse_lesson
from compose_sim.plugins.learn.core.outcome import Evidence, judge_attempt
from tests.builders import a_report

_TEXT = {"title": "T", "goal": "G", "question": "Q", "answer": "A", "why": "W", "hints": "[a, b, c]"}


def a_lesson(requirements: str, fails: str) -> Lesson:
    lines = [*(f"{key}: {value}" for key, value in _TEXT.items()), f"pass: {requirements}", f"fails: {fails}"]
    return parse_lesson("\n".join(lines), "lesson.yaml")


def a_run(records: tuple[Any, ...] = (), *, steps: int = 8, **report: Any) -> Evidence:
    nodes = tuple(NodeReport(name=f"node-{number}", ranks=(number,), steps=steps) for number in range(2))
    ranks = {rank: RankObserved(rank=rank, node=f"node-{rank}", records=records) for rank in range(2)}
    return Evidence(report=a_report(**{"nodes": nodes, **report}), observed=Observed(ranks=ranks), folder="/home/ada")


def statuses(lesson: Lesson, run: Evidence) -> dict[str, str]:
    return {finding.id: finding.status for finding in judge_attempt(lesson, run).findings}


def test_an_empty_script_fails_whatever_its_checks() -> None:
    lesson = a_lesson("{steps: 4, loss_falls: 10%, collectives: 1, checks: [set-epoch]}", "set-epoch")
    empty = a_run(steps=0, checks=(CheckResult(id="set-epoch", status="not-applicable", detail="no loader"),))

    assert statuses(lesson, empty) == {
        **{"run": "passed", "steps": "failed", "loss_falls": "failed", "collectives": "failed"},
        "set-epoch": "unjudged",
    }
    assert judge_attempt(lesson, empty).status == "failed"


def test_a_check_that_did_not_apply_is_not_passed() -> None:
    lesson = a_lesson("{steps: 4, checks: [set-epoch]}", "set-epoch")
    run = a_run(checks=(CheckResult(id="set-epoch", status="not-applicable", detail="one epoch"),))

    outcome = judge_attempt(lesson, run)

    assert outcome.status == "unjudged"
    assert outcome.reason is not None
    assert outcome.reason.id == "set-epoch"


def test_a_warning_is_not_passed_and_its_place_is_in_the_folder() -> None:
    lesson = a_lesson("{checks: [batchnorm-local]}", "batchnorm-local")
    place = Place(file="/home/ada/11/script.py", line=7)
    run = a_run(checks=(CheckResult(id="batchnorm-local", status="warned", detail="…", place=place),))

    reason = judge_attempt(lesson, run).reason

    assert reason is not None
    assert (reason.status, reason.place) == ("failed", "11/script.py:7")


def test_the_loss_must_fall() -> None:
    lesson = a_lesson("{loss_falls: 50%}", "loss_falls")

    def of(*values: float) -> str:
        return judge_attempt(lesson, a_run(tuple(LossValue(value=value) for value in values))).status

    assert of(8.0, 6.0, 5.0, 3.0) == "passed"
    assert of(8.0, 7.0, 6.0, 5.0) == "failed"
    assert of(8.0, 1.0) == "failed"
    assert of(8.0, 7.0, 6.0, float("nan")) == "failed"


def test_reductions_are_counted_per_optimizer_step() -> None:
    lesson = a_lesson("{reductions_per_step: 1}", "reductions_per_step")
    step, forward = OptimizerStep(step=1, optimizer=0, nth=1), DdpForward(ddp=0)

    assert judge_attempt(lesson, a_run((forward, step, forward, step))).status == "passed"
    assert judge_attempt(lesson, a_run((forward, forward, step))).status == "failed"
    assert judge_attempt(lesson, a_run((step,))).status == "failed"
    assert judge_attempt(lesson, a_run((forward,))).status == "failed"


def test_a_metric_that_nobody_printed_fails() -> None:
    lesson = a_lesson("{metrics: {total: {equals: 6}}}", "total")

    assert statuses(lesson, a_run(metrics={"total": 6}))["total"] == "passed"
    assert statuses(lesson, a_run(metrics={"total": 7}))["total"] == "failed"
    assert statuses(lesson, a_run())["total"] == "failed"


def test_a_run_that_fails_is_not_passed_and_one_that_the_engine_lost_is_not_judged() -> None:
    lesson = a_lesson("{steps: 4}", "steps")
    crashed = a_run(verdict="failed", cause=Cause(kind="exception", rank=0, message="ValueError: x"))
    lost = a_run(verdict="failed", cause=Cause(kind="engine", message="the daemon is gone"))
    endless = replace(a_run(verdict="timeout", cause=Cause(kind="timeout", message="60 s")))

    assert statuses(lesson, crashed)["run"] == "failed"
    assert judge_attempt(lesson, lost).status == "unjudged"
    assert judge_attempt(lesson, endless).status == "failed"
