"""An attempt is judged by evidence: what cannot be judged is not passed, and an empty script fails."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from compose_sim.core.events.observations import Observed, RankObserved
from compose_sim.core.report.report import Cause, CheckResult, ExpectationResult, NodeReport, Place
from compose_sim.node.records.data import TrainingForward
from compose_sim.node.records.models import LossValue, OptimizerStep
from compose_sim.node.records.process_groups import DdpForward
from compose_sim.plugins.learn.core.lesson import Lesson, parse_lesson
from compose_sim.plugins.learn.core.outcome import Evidence, judge_attempt, measured_numbers, score_text
from tests.builders import a_report

_TEXT = {"title": "T", "goal": "G", "question": "Q", "answer": "A", "why": "W", "hints": "[a, b, c]"}


def a_lesson(requirements: str, fails: str) -> Lesson:
    lines = [*(f"{key}: {value}" for key, value in _TEXT.items()), f"pass: {requirements}", f"fails: {fails}"]
    return parse_lesson("\n".join([*lines, "program: harness.py"]), "lesson.yaml")


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
        "set-epoch": "failed",
    }
    assert judge_attempt(lesson, empty).status == "failed"


def test_a_check_that_did_not_apply_is_not_passed() -> None:
    lesson = a_lesson("{steps: 4, checks: [set-epoch]}", "set-epoch")
    run = a_run(checks=(CheckResult(id="set-epoch", status="not-applicable", detail="one epoch"),))

    outcome = judge_attempt(lesson, run)

    assert outcome.status == "failed"
    assert outcome.reason is not None
    assert outcome.reason.id == "set-epoch"


def test_a_check_that_explains_decides_nothing() -> None:
    lesson = a_lesson("{steps: 4, explained_by: [set-epoch]}", "steps")
    failed = CheckResult(id="set-epoch", status="failed", detail="…", place=Place(file="/home/ada/3/script.py", line=7))

    assert statuses(lesson, a_run(checks=(failed,))) == {"run": "passed", "steps": "passed"}
    assert statuses(lesson, a_run(checks=(failed,), steps=2)) == {
        **{"run": "passed", "steps": "failed"},
        "set-epoch": "failed",
    }


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


def test_only_what_the_program_of_the_course_reports_counts_and_all_of_it() -> None:
    lesson = a_lesson("{metrics: {total: {equals: 6}}}", "total")

    def of(*lines: str) -> str:
        return statuses(lesson, replace(a_run(metrics={"total": 6}), measured=measured_numbers({0: lines}, "abc")))[
            "total"
        ]

    assert of('{"total": 6, "token": "abc"}') == "passed"
    assert of('{"total": 6, "token": "abc"}', '{"total": 7, "token": "abc"}') == "failed"
    assert of('{"total": 6}', '{"total": 6, "token": ""}', '{"total": 6, "note": "abc"}', "abc", '["abc"]') == "failed"
    assert of() == "failed"


@pytest.mark.parametrize(
    ("measured", "score"),
    [
        ({"wrong": (0,), "bytes": (8, 24, 16)}, {"bytes": 24}),  # the rank that sends most
        ({"wrong": (1,), "bytes": (8,)}, {}),  # not passed
        ({"wrong": (0,), "other": (8,)}, {}),
        ({"wrong": (0,), "bytes": (float("nan"),)}, {}),
        ({"wrong": (0,), "bytes": (10**400,)}, {}),  # no float
    ],
)
def test_the_largest_number_of_all_ranks_is_the_score_of_a_run_that_passed(
    measured: dict[str, tuple[float, ...]], score: dict[str, float]
) -> None:
    lesson = a_lesson("{metrics: {wrong: {equals: 0}}}", "wrong").model_copy(
        update={"score": {"bytes": 24, "never": 1}}
    )

    by_rank = {name: tuple(enumerate(values)) for name, values in measured.items()}

    assert judge_attempt(lesson, replace(a_run(), measured=by_rank)).score == score


@pytest.mark.parametrize(
    ("bound", "values", "shown"),
    [
        ("{at_least: 0.3, at_most: 0.6}", (0.0309, 0.969), "0.969 on rank 1; it must be at least 0.3 and at most 0.6"),
        ("{at_least: 0.3, at_most: 0.6}", (0.4, 0.5), "0.5 on rank 1; it must be at least 0.3 and at most 0.6"),
        ("{at_least: 1, at_most: 4}", (4, 3, 2, 1), "4 on rank 0; it must be at least 1 and at most 4"),
        ("{at_least: 0.5}", (0.9, 0.7), "0.7 on rank 1; it must be at least 0.5"),
        ("{at_most: 2}", (1, float("nan")), "nan on rank 1; it must be at most 2"),
        ("{at_least: 96, at_most: 96}", (192, 192), "192; it must be 96"),
        ("{at_most: 5}", (2.44249e-13,), "0; it must be at most 5"),
        ("{at_most: 130000}", (671744,), "671,744; it must be at most 130,000"),
        ("{at_most: 0.000001}", (9.2123e-05,), "0.0000921; it must be at most 0.000001"),
        ("{at_most: 0.55}", (0.55004,), "0.55004; it must be at most 0.55"),  # no "0.55", which would be within it
    ],
)
def test_the_number_of_the_rank_that_is_worst_is_shown(bound: str, values: tuple[float, ...], shown: str) -> None:
    lesson = a_lesson(f"{{metrics: {{part: {bound}}}}}", "part")

    found = judge_attempt(lesson, replace(a_run(), measured={"part": tuple(enumerate(values))})).findings[-1]

    assert (found.id, found.detail) == ("part", shown)


def test_a_list_of_numbers_is_judged_as_each_of_them() -> None:
    lesson = a_lesson("{metrics: {collectives: {equals: 1}}}", "collectives")
    logs = {0: ['{"collectives": [1, 1], "token": "abc"}'], 1: ['{"collectives": [1, 2], "token": "abc"}']}

    found = judge_attempt(lesson, replace(a_run(), measured=measured_numbers(logs, "abc"))).findings[-1]

    assert (found.status, found.detail) == ("failed", "2 on rank 1; it must be 1")


@pytest.mark.parametrize(
    ("name", "wanted", "value", "shown"),
    [
        ("state_continuous", "true", "true", "x"),
        ("steps_lost_at_most", "5", "5", "x; it must be at most 5"),
        ("world_sizes", "[2]", "2", "x; wanted: 2"),
    ],
)
def test_what_an_expectation_wants_is_shown_once(name: str, wanted: str, value: str, shown: str) -> None:
    lesson = a_lesson(f"{{expect: [{name}: {wanted}]}}", name)
    result = ExpectationResult(id=name, wanted=value, status="passed", detail="x")

    assert judge_attempt(lesson, a_run(expectations=(result,))).findings[-1].detail == shown


def test_a_score_is_shown_beside_par_and_the_best() -> None:
    assert (
        score_text("bytes_sent", 24576.0, par=24576, best=8192.5) == "bytes sent 24,576 (par 24,576, your best 8,192.5)"
    )
    assert score_text("messages", None, par=6) == "messages (par 6)"


def an_epoch(number: int, *rows: int) -> tuple[Any, ...]:
    step = OptimizerStep(step=1, optimizer=0, nth=1, backwards=1, type="SGD")
    forward = TrainingForward(model=0, ranks=(0, 1), forward=0, rows=rows, loader=0, epoch=number)
    return forward, step


def of_ranks(*records: tuple[Any, ...]) -> Evidence:
    ranks = {rank: RankObserved(rank=rank, node=f"node-{rank}", records=each) for rank, each in enumerate(records)}
    return replace(a_run(), observed=Observed(ranks=ranks))


def test_every_sample_is_trained_on_once_in_each_epoch() -> None:
    lesson = a_lesson("{samples_per_epoch: 4}", "samples_per_epoch")

    def status(*records: tuple[Any, ...]) -> str:
        return judge_attempt(lesson, of_ranks(*records)).status

    assert status(an_epoch(0, 1, 2), an_epoch(0, 3, 4)) == "passed"
    assert status(an_epoch(0, 1, 2, 3), an_epoch(0, 4)) == "passed"  # unequal shares
    assert status(an_epoch(0, 1, 2), an_epoch(0, 2, 3)) == "failed"
    assert status(an_epoch(0, 1), an_epoch(0, 2)) == "failed"
    assert status((*an_epoch(0, 1), *an_epoch(1, 1)), (*an_epoch(0, 2), *an_epoch(1, 2))) == "failed"
    assert status((), ()) == "failed"


def test_epochs_are_in_different_orders() -> None:
    lesson = a_lesson("{samples_per_epoch: 6, orders: 2}", "orders")

    def status(*second: int) -> str:
        return judge_attempt(lesson, of_ranks((*an_epoch(0, 1, 2, 3, 4, 5, 6), *an_epoch(1, *second)))).status

    assert status(3, 1, 5, 2, 6, 4) == "passed"
    assert status(1, 2, 3, 4, 5, 6) == "failed"
    assert status(6, 5, 4, 3, 2, 1) == "failed"
    assert status(4, 5, 6, 1, 2, 3) == "failed"  # the same batches in another sequence


def test_backward_passes_are_counted_for_each_step() -> None:
    lesson = a_lesson("{backwards_per_step: 4}", "backwards_per_step")

    def status(*counts: int) -> str:
        steps = (OptimizerStep(step=1, optimizer=0, nth=1, backwards=count, type="SGD") for count in counts)
        return judge_attempt(lesson, a_run(tuple(steps))).status

    assert status(4, 4) == "passed"
    assert status(4, 1) == "failed"
    assert status() == "failed"


def test_the_line_of_the_student_is_shown_beside_those_of_torch() -> None:
    frames = [f'  File "/torch/{number}.py", line 1, in f\n    x' for number in range(9)]
    text = "\n".join(['  File "/home/ada/13/script.py", line 7, in g', "    dist.isend(3)", *frames, "TypeError: 3"])
    crashed = a_run(verdict="failed", cause=Cause(kind="exception", rank=0, message="TypeError: 3", traceback=text))

    reason = judge_attempt(a_lesson("{steps: 4}", "steps"), crashed).reason

    assert reason is not None
    assert reason.detail.splitlines()[:3] == [
        "TypeError: 3",
        '  File "13/script.py", line 7, in g',
        "    dist.isend(3)",
    ]


def test_a_run_that_fails_is_not_passed_and_one_that_the_engine_lost_is_not_judged() -> None:
    lesson = a_lesson("{steps: 4}", "steps")
    crashed = a_run(verdict="failed", cause=Cause(kind="exception", rank=0, message="ValueError: x"))
    lost = a_run(verdict="failed", cause=Cause(kind="engine", message="the daemon is gone"))
    endless = replace(a_run(verdict="timeout", cause=Cause(kind="timeout", message="60 s")))

    assert statuses(lesson, crashed)["run"] == "failed"
    assert judge_attempt(lesson, lost).status == "unjudged"
    assert judge_attempt(lesson, endless).status == "failed"
