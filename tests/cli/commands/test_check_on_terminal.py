"""What `check` prints for a person: the problems with their lines, directly above the verdict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from compose_sim.cli.views.report import print_judgement
from compose_sim.core.report.report import Place
from tests.cli.commands.test_check import ASIDE, BAD, GOOD, SO_SO, a_report

SOURCE = "import torch\n\n    step(loss)\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def printed(capsys: pytest.CaptureFixture[str], *, verbose: bool = False) -> list[str]:
    report = a_report(BAD, GOOD, SO_SO, ASIDE, GOOD)
    checks = tuple(
        replace(each, place=replace(each.place, file="train.py")) if each.place else each for each in report.checks
    )
    print_judgement(replace(report, checks=checks), verbose=verbose)
    return capsys.readouterr().out.splitlines()


def test_what_passed_is_one_line_and_failures_come_last(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys)

    assert [line.split()[:2] for line in lines if line[:1] in "!✘"] == [
        [],
        ["!", "rank-confusion"],
        ["✘", "hang"],
        [],
        ["✘", "failed"],
    ]
    assert lines[1] == "checks   2 passed, 1 not applicable (-v lists them)"
    assert not any(line.startswith(("✔", "–")) for line in lines)


def test_the_line_of_code_is_shown_and_underlined(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys)
    at = lines.index("    at: train.py:3")

    assert lines[at + 1 : at + 3] == ["        step(loss)", "        ^^^^^^^^^^"]


def test_verbose_prints_every_result_in_order(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    marks = [line[0] for line in printed(capsys, verbose=True) if line[:1] in ("✔", "✘", "!", "–")]

    assert marks == ["✘", "✔", "!", "–", "✔", "✘"]


def test_a_file_outside_of_the_folder_is_not_read(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_judgement(a_report(replace(BAD, place=Place(file="/etc/hostname", line=1))), verbose=False)

    assert not any("^" in line for line in capsys.readouterr().out.splitlines())
