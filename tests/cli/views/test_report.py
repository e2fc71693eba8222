"""A report is short, whatever happened, and the last line has the result."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click
import pytest

from compose_sim.cli.views.report import cause_line, final_line, metric_parts, print_report, ranges
from compose_sim.core.report.make_report import make_report
from compose_sim.core.report.report import Cause, CheckResult, Report
from compose_sim.core.state.fold import fold_all
from tests.builders import a_plan, a_report, an_event


def report_of(nodes: int = 2, *, codes: dict[int, int] | None = None) -> Report:
    """Return the report of a run with these exit codes of nodes, 0 by default."""
    plan = a_plan(nodes=nodes)
    codes = {node: (codes or {}).get(node, 0) for node in range(nodes)}
    events = [
        an_event("started", 0.0),
        *(an_event("node-stopped", 9.5, rank=node, exit_code=code) for node, code in codes.items()),
    ]
    return make_report(plan, fold_all(plan, events))


def a_cause(**changes: Any) -> Cause:
    return Cause(**{"node": "node-1", "rank": 3, "kind": "exit", "message": "boom", **changes})


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        (a_cause(message="ValueError: boom\nsecond"), "rank 3 on node-1: ValueError: boom"),
        (a_cause(message="rank 3 was killed by SIGKILL"), "rank 3 was killed by SIGKILL (node-1)"),
        (a_cause(message="rank 3 was killed: node-1 ran out of memory"), "rank 3 was killed: node-1 ran out of memory"),
        (a_cause(rank=None, message="node-1 exited with status 1"), "node-1 exited with status 1"),
        (a_cause(rank=None, node=None, message="not done after 10 s"), "not done after 10 s"),
        (a_cause(message="x" * 500), "rank 3 on node-1: " + "x" * 239 + "…"),
        (
            a_cause(message="no rank makes progress: rank 3 on node-1 sleeps"),
            "no rank makes progress: rank 3 on node-1 sleeps",
        ),
        (a_cause(message=""), "rank 3 on node-1: "),
    ],
)
def test_a_cause_is_one_line_that_says_where(cause: Cause, words: str) -> None:
    assert cause_line(cause) == words


def test_loss_and_accuracy_come_first_and_the_step_last() -> None:
    metrics = {
        "step": 80,
        "epoch": 4,
        "time": 1.5,
        "ok": True,
        "name": "x",
        "test_accuracy": 0.98765,
        "loss": 0.00001234,
    }

    assert metric_parts(metrics) == ["loss 1.234e-05", "test_accuracy 0.9877", "time 1.5", "epoch 4", "step 80"]


@pytest.mark.parametrize(("numbers", "text"), [([0], "0"), ([0, 1, 2], "0-2"), ([0, 2, 3], "0, 2-3"), ([], "")])
def test_ranks_are_told_in_ranges(numbers: list[int], text: str) -> None:
    assert ranges(numbers) == text


def test_of_many_nodes_those_that_ended_badly_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(report_of(100, codes={99: 3}))

    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["node-99", "99", "3", "0"] in rows
    assert ["99", "nodes", "0-98", "0", "0"] in rows


def test_of_many_nodes_that_all_ended_in_their_own_way_some_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(report_of(40, codes={node: node for node in range(40)}))

    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if line.startswith("node-")]) == 16
    assert "and 24 more: add --json" in lines


def test_a_report_goes_to_stderr_where_stdout_is_for_data(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(report_of(), err=True)

    written = capsys.readouterr()
    assert written.out == ""
    assert written.err.rstrip().splitlines()[-1] == "✔ passed  2 nodes, 2 ranks of train.py in 9.50 s"


@pytest.mark.parametrize(
    ("torch_range", "words"),
    [
        ("tested", "torch 2.16.0"),
        (None, "torch 2.16.0"),
        ("newer", "torch 2.16.0 (newer than the tested range)"),
        ("older", "torch 2.16.0 (older than the tested range)"),
    ],
)
def test_a_version_of_torch_that_is_not_tested_is_pointed_out(
    capsys: pytest.CaptureFixture[str], torch_range: Any, words: str
) -> None:
    print_report(replace(report_of(), versions={"torch": "2.16.0", "python": "3.12.1"}, torch_range=torch_range))

    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("ran on"))
    assert line.removeprefix("ran on").strip().split(" · ")[:2] == [words, "python 3.12.1"]


def test_the_last_line_names_the_cause() -> None:
    line = click.unstyle(final_line(report_of(codes={1: 137})))

    assert line == "✘ failed  node-1 was killed (SIGKILL) before its ranks started"


def test_the_last_line_of_a_run_that_passed_names_the_checks_that_failed() -> None:
    checks = (
        CheckResult(id="set-epoch", status="failed", detail="d"),
        CheckResult(id="matches-single", status="failed", detail="d", follows="set-epoch"),
        CheckResult(id="rank-seeds", status="warned", detail="d"),
    )
    report = replace(report_of(), checks=checks)

    assert click.unstyle(final_line(report)) == "! passed, but set-epoch failed  2 nodes, 2 ranks of train.py in 9.50 s"
    assert click.unstyle(final_line(report, skip=("set-epoch",))).startswith("✔ passed  2 nodes")


def test_a_check_that_found_the_cause_does_not_repeat_it(capsys: pytest.CaptureFixture[str]) -> None:
    hang = CheckResult(id="hang", status="failed", detail="rank 1 on node-1 sleeps", fix="Wake it.")
    print_report(a_report(verdict="hung", cause=a_cause(message=hang.detail, rank=1), checks=(hang,)))

    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "rank 1 on node-1 sleeps" in line] == [lines[-1]]
    assert "✘ hang  see the last line" in lines
