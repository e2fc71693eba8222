"""The grades of a class are written as CSV, JSON, HTML and JUnit, whatever students write into them."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
import xmlschema

from compose_sim.plugins.learn.core.gradebook import Grade, read_grades, to_csv, to_html, to_json, to_junit
from compose_sim.plugins.learn.core.outcome import Finding, Outcome, Status, conclude
from tests.builders import ROOT

NASTY = "=cmd|'/c calc'!A1<script>alert(1)</script>\x1b]0;x\x07"


PAR = {"bytes_sent": 24576.0, "messages": 6.0}


def an_outcome(status: Status, detail: str = "seen", **score: float) -> Outcome:
    return conclude((Finding(id="set-epoch", status=status, detail=detail),), seconds=1.5, score=score)


GRADES = [
    Grade(student="ada", lesson="01-ranks", outcome=an_outcome("passed"), attempts=3, hints=1, prediction=NASTY),
    Grade(
        student="ada", lesson="02-samples", outcome=an_outcome("unjudged", "the daemon is gone", messages=1), par=PAR
    ),
    Grade(student=NASTY, lesson="01-ranks", outcome=an_outcome("failed", NASTY)),
    Grade(student=NASTY, lesson="02-samples", outcome=an_outcome("passed", bytes_sent=24576, messages=4), par=PAR),
]


def test_csv_has_a_row_for_each_student_and_no_formula() -> None:
    header, ada, nasty = csv.reader(io.StringIO(to_csv(GRADES)))

    assert header[:4] == ["student", "01-ranks", "02-samples", "passed"]
    assert header[4:7] == ["01-ranks attempts", "01-ranks hints", "01-ranks prediction"]
    assert ada[:7] == ["ada", "passed", "unjudged", "1", "3", "1", f"'{NASTY}"]
    assert nasty[:4] == [f"'{NASTY}", "failed", "passed", "1"]
    assert header[-2:] == ["02-samples bytes_sent", "02-samples messages"]
    assert (ada[-2:], nasty[-2:]) == (["", ""], ["24576", "4"])


def test_json_has_every_finding() -> None:
    grades = json.loads(to_json(GRADES))["grades"]

    assert [grade["outcome"] for grade in grades] == ["passed", "unjudged", "failed", "passed"]
    assert [(grade["score"], grade["par"]) for grade in grades[1::2]] == [
        ({}, PAR),
        ({"bytes_sent": 24576, "messages": 4}, PAR),
    ]
    assert grades[2]["findings"] == [{"id": "set-epoch", "status": "failed", "detail": NASTY, "place": ""}]


def test_grades_are_read_again_and_nothing_else_is() -> None:
    assert read_grades(to_json(GRADES)) == GRADES
    for text in ("{}", "[]", '{"grades": [{}]}', "x"):
        with pytest.raises(ValueError, match=r"grades|Expecting"):
            read_grades(text)


def test_html_escapes_what_students_wrote() -> None:
    page = to_html(GRADES)

    assert "<script" not in page
    assert "1 of 2" in page
    assert page.count("<td>bytes sent 24,576 (par 24,576), messages 4 (par 6)\n") == 1
    assert page.count("<td>\n") == 3  # those without a score
    assert "the daemon is gone" in page


def test_junit_is_valid_and_counts_what_could_not_be_judged_as_errors(tmp_path: Path) -> None:
    text = to_junit(GRADES)
    (tmp_path / "grades.xml").write_text(text)

    schema = xmlschema.XMLSchema(ROOT / "tests" / "core" / "report" / "junit-10.xsd")
    schema.validate(str(tmp_path / "grades.xml"))
    ada, nasty = schema.to_dict(str(tmp_path / "grades.xml"))["testsuite"]
    assert (ada["@failures"], ada["@errors"]) == ("0", "1")
    assert (nasty["@failures"], nasty["@errors"]) == ("1", "0")
