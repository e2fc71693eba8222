"""Output for CI systems and GitHub is valid, whatever the report contains."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest
import xmlschema
from hypothesis import given
from hypothesis import strategies as st

from compose_sim.core.checks import failed, not_applicable, passed, warned
from compose_sim.core.report.ci import MAX_ANNOTATIONS, junit, summary, workflow_commands
from compose_sim.core.report.report import (
    Cause,
    Coverage,
    ExpectationResult,
    Hint,
    NodeReport,
    Place,
    Report,
    ScenarioReport,
    Timings,
)
from tests import builders
from tests.builders import ROOT

SCHEMA = xmlschema.XMLSchema10(str(ROOT / "tests" / "core" / "report" / "junit-10.xsd"))
RESULTS = {
    "set-epoch": failed("epochs 0 and 1 are alike", fix="call sampler.set_epoch(epoch)", at=("/p/train.py", 12)),
    "sampler-tail": warned("3 of 103 samples are seen twice", fix="drop_last=True"),
    "teardown": passed("all ranks ended well"),
    "batchnorm-local": not_applicable("the model has no BatchNorm"),
}


CHECKS = tuple(replace(result.to_report(), id=name) for name, result in RESULTS.items())


def a_report(cause: Cause | None = None, **changes: Any) -> Report:
    """Return the report of two nodes with two ranks each, with a result of every kind."""
    values: dict[str, Any] = {
        "program": "src/train.py --lr 0.1",
        "verdict": "failed" if cause else "passed",
        "cause": cause,
        "nodes": (NodeReport(name="node-0", ranks=(0, 1)), NodeReport(name="node-1", ranks=(2, 3))),
        "timings": Timings(started_at=1790000000.25, total_s=4.25),
        "versions": {"host": "vm"},
        "checks": CHECKS,
    }
    return builders.a_report(**{**values, **changes})


def a_cause(**changes: Any) -> Cause:
    return Cause(**{"node": "node-1", "rank": 2, "kind": "exception", "message": "ValueError: boom", **changes})


def cases_of(text: str) -> dict[str, ElementTree.Element]:
    """Return the test cases, by name."""
    SCHEMA.validate(text)
    return {case.get("name", ""): case for case in ElementTree.fromstring(text).iter("testcase")}


def test_what_was_not_judged_is_skipped_and_an_error_if_that_decides() -> None:
    coverage = Coverage(gradients="parameters are sharded")
    cause = Cause(kind="coverage", message=coverage.text)

    lenient = cases_of(junit(a_report(coverage=coverage)))
    strict = cases_of(junit(a_report(coverage=coverage, cause=cause, verdict="inconclusive")))

    assert [name for name in ("replicas", "gradients", "samples") if lenient[name].find("skipped") is not None] == [
        "gradients"
    ]
    assert (lenient.get("verdict"), "run" in strict) == (None, False)
    assert strict["verdict"].find("error").get("message") == "gradients not judged: parameters are sharded"  # type: ignore[union-attr]


def test_github_is_notified_of_what_was_not_judged() -> None:
    coverage = Coverage(replicas="no optimizer stepped", samples="no optimizer stepped")
    inconclusive = a_report(
        coverage=coverage, cause=Cause(kind="coverage", message=coverage.text), verdict="inconclusive"
    )

    assert (
        "::notice title=composesim coverage::replicas and samples not judged: no optimizer stepped"
        in workflow_commands(a_report(coverage=coverage), path_of=str)
    )
    assert workflow_commands(inconclusive, path_of=str)[0].startswith("::error title=composesim inconclusive::")


def test_a_consequence_names_its_cause_and_a_hint_is_a_notice_at_its_line() -> None:
    follows = replace(CHECKS[0], follows="rank-confusion")
    hints = (Hint(place=Place(file="train.py", line=7), text="no map_location"),)
    report = a_report(checks=(follows,), hints=hints)

    assert "follows from: rank-confusion" in (cases_of(junit(report))["set-epoch"][0].text or "").splitlines()
    commands = workflow_commands(report, path_of=lambda file: f"src/{file}")
    assert "%0AFollows from rank-confusion%0AFix: " in commands[0]
    assert commands[1] == "::notice file=src/train.py,line=7,title=composesim note::no map_location"


def test_each_expectation_is_a_case_and_one_that_cannot_be_judged_is_an_error() -> None:
    results = (
        ExpectationResult(id="recovered_within", wanted="3.00 s", status="passed", detail="recovered in 1.2 s"),
        ExpectationResult(id="world_sizes", wanted="4 → 3", status="failed", detail="4"),
        ExpectationResult(id="steps_lost_at_most", wanted="9", status="inconclusive", detail="no steps"),
    )
    scenario = ScenarioReport(name="node-loss", seed=1, run_verdict="passed", run_exit_code=0)
    cause = a_cause(rank=None, node=None, kind="expectation", message="world_sizes 4 → 3: 4")
    cases = cases_of(junit(a_report(cause, checks=(), expectations=results, scenario=scenario)))

    assert [(case, cases[case].get("classname"), cases[case][0].tag) for case in list(cases)[:3]] == [
        ("recovered_within 3.00 s", "composesim.train.node-loss", "system-out"),
        ("world_sizes 4 → 3", "composesim.train.node-loss", "failure"),
        ("steps_lost_at_most 9", "composesim.train.node-loss", "error"),
    ]
    assert list(cases["rank 0 on node-0"]) == []


def test_each_check_is_a_case() -> None:
    text = junit(a_report())
    cases = cases_of(text)

    assert [child.tag for name in RESULTS for child in cases[name]] == [
        "failure",
        "system-out",
        "system-out",
        "skipped",
    ]
    assert cases["set-epoch"].get("classname") == "composesim.train"
    assert cases["set-epoch"][0].get("message") == "epochs 0 and 1 are alike"
    assert (
        cases["set-epoch"][0].text == "epochs 0 and 1 are alike\nfix: call sampler.set_epoch(epoch)\nat /p/train.py:12"
    )
    assert (cases["sampler-tail"][0].text or "").startswith("warned: 3 of 103")
    assert cases["batchnorm-local"][0].get("message") == "the model has no BatchNorm"
    suite = ElementTree.fromstring(text)[0]
    assert {key: suite.get(key) for key in ("tests", "failures", "errors", "skipped", "time", "timestamp")} == {
        "tests": "8",
        "failures": "1",
        "errors": "0",
        "skipped": "1",
        "time": "4.250",
        "timestamp": "2026-09-21T14:13:20+00:00",
    }


def test_the_rank_that_failed_first_is_the_failure_of_the_run() -> None:
    cases = cases_of(junit(a_report(a_cause(traceback="Traceback …\nValueError: boom"))))

    assert [child.tag for rank in range(4) for child in cases[f"rank {rank} on node-{rank // 2}"]] == [
        "skipped",
        "skipped",
        "failure",
        "skipped",
    ]
    assert cases["rank 2 on node-1"][0].text == "Traceback …\nValueError: boom"


@pytest.mark.parametrize("cause", [a_cause(rank=None, node=None, kind="timeout"), None])
def test_a_run_that_failed_of_no_rank_is_an_error_of_its_own(cause: Cause | None) -> None:
    cases = cases_of(junit(a_report(cause, verdict="timeout")))

    assert [child.tag for child in cases["run"]] == ["error"]


@given(st.text(), st.text(st.characters(codec="utf-8"), max_size=20))
def test_any_text_is_valid_xml(text: str, program: str) -> None:
    check = replace(CHECKS[0], detail=text, fix=text)
    cause = a_cause(message=text, traceback=text)

    SCHEMA.validate(junit(a_report(cause, program=program, versions={"host": text}, checks=(check,))))


def test_control_characters_stay_readable() -> None:
    cases = cases_of(junit(a_report(a_cause(message="\x1b[31mred\x00"))))

    assert cases["rank 2 on node-1"][0].get("message") == r"\x1b[31mred\x00"


def test_annotations_name_file_line_and_fix_with_every_sign_escaped() -> None:
    check = replace(CHECKS[0], detail="100% of it: a, b\nc", place=Place(file="/p/a,b:c.py", line=3))

    lines = workflow_commands(a_report(checks=(check, *CHECKS[1:])), path_of=lambda file: file.removeprefix("/p/"))

    assert lines == [
        "::error file=a%2Cb%3Ac.py,line=3,title=composesim set-epoch::"
        "100%25 of it: a, b%0Ac%0AFix: call sampler.set_epoch(epoch)",
        "::warning title=composesim sampler-tail::3 of 103 samples are seen twice%0AFix: drop_last=True",
    ]


def test_an_exception_is_annotated_where_the_repository_raised_it() -> None:
    traceback = (
        'Traceback:\n  File "/p/train.py", line 7, in main\n  File "/venv/site-packages/torch/nn.py", line 1, in call\n'
    )

    line, *_ = workflow_commands(a_report(a_cause(traceback=traceback)), path_of=lambda file: file.removeprefix("/p/"))

    assert line == "::error file=train.py,line=7,title=composesim failed::ValueError: boom"


def test_there_are_no_more_annotations_of_a_kind_than_github_shows() -> None:
    checks = tuple(replace(check, id=f"{check.id}-{index}") for index in range(20) for check in CHECKS)
    report = a_report(a_cause(), checks=checks)

    lines = workflow_commands(report, path_of=str)

    assert [sum(line.startswith(f"::{kind} ") for line in lines) for kind in ("error", "warning")] == [
        MAX_ANNOTATIONS
    ] * 2
    assert lines[0] == "::error title=composesim failed::ValueError: boom"


def test_the_summary_is_a_table_with_what_is_wrong_first() -> None:
    report = a_report(checks=(*CHECKS[:3], replace(CHECKS[3], detail="a | b\n`c` <d>")))
    rows = [line for line in summary(report, "words").splitlines() if line.startswith("| ")]

    assert [re.findall(r"`([a-z-]+)`", row)[:1] for row in rows[1:]] == [[name] for name in RESULTS]
    assert r"a \| b \`c\` &lt;d&gt;" in rows[-1]
