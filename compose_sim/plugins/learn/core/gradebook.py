"""Write the grades of a class as CSV, JSON, HTML and JUnit XML: a row for each student, a column for each lesson."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from xml.etree.ElementTree import Element, SubElement, indent, tostring

import jinja2

from compose_sim.core.report.ci import xml_text
from compose_sim.plugins.learn.core.outcome import Finding, Outcome, Status, conclude, score_text

MARKS: dict[Status, str] = {"passed": "✔", "failed": "✘", "unjudged": "?"}
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet would execute at the beginning of a cell
_TAGS: dict[Status, str] = {"failed": "failure", "unjudged": "error"}
_KEPT = ("student", "lesson", "attempts", "hints", "prediction", "script")
_PAGE = jinja2.Environment(autoescape=True, trim_blocks=True).from_string("""\
<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Grades</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>
body { font: 15px system-ui, sans-serif; margin: 2rem; color: #1b1b1b; background: #fff }
table { border-collapse: collapse; margin-bottom: 2rem } th, td { border: 1px solid #bbb; padding: .3rem .6rem; text-align: left }
.passed { background: #d9f2df } .failed { background: #fbdcd9 } .unjudged { background: #fff2c9 } td.mark { text-align: center }
</style>
<h1>Grades</h1>
<table><tr><th>student{% for lesson in lessons %}<th>{{ lesson }}{% endfor %}<th>passed</tr>
{% for student, row in rows.items() %}
<tr><th>{{ student }}{% for lesson in lessons %}
<td class="mark {{ row[lesson].status }}" title="{{ row[lesson].status }}">{{ marks[row[lesson].status] }}{% endfor %}
<td>{{ row.values() | selectattr("status", "equalto", "passed") | list | length }} of {{ lessons | length }}</tr>
{% endfor %}
</table>
<p>✔ passed · ✘ failed · ? could not be judged</p>
<table><tr><th>student<th>lesson<th>outcome<th>seconds<th>score<th>evidence</tr>
{% for student, row in rows.items() %}{% for lesson, outcome in row.items() %}
<tr class="{{ outcome.status }}"><td>{{ student }}<td>{{ lesson }}<td>{{ outcome.status }}<td>{{ outcome.seconds }}
<td>{{ score(lesson, outcome) }}
<td>{% if outcome.reason %}{{ outcome.reason.id }}: {{ outcome.reason.detail }}{% endif %}</tr>
{% endfor %}{% endfor %}
</table>
</html>
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """The outcome of one student in one lesson."""

    student: str
    lesson: str
    outcome: Outcome
    attempts: int = 0  # as the student's folder says, which they can change
    hints: int = 0
    prediction: str = ""
    agrees: bool | None = None  # whether the prediction names the right number; None if there is none to compare
    script: str = ""  # a hash of what was handed in
    par: Mapping[str, float] = field(default_factory=dict)  # of each number of the lesson's score

    @property
    def evidence(self) -> str:
        """The first requirement that was not met, with what was seen, on one line; "" if the lesson is passed."""
        reason = self.outcome.reason
        return " ".join(f"{reason.id}: {reason.detail}".split()) if reason else ""


def rows_of(grades: Sequence[Grade]) -> dict[str, dict[str, Outcome]]:
    """Return the outcomes by student and lesson, in the order of the grades."""
    rows: dict[str, dict[str, Outcome]] = {}
    for grade in grades:
        rows.setdefault(grade.student, {})[grade.lesson] = grade.outcome
    return rows


def to_csv(grades: Sequence[Grade]) -> str:
    """
    Return one row for each student: the outcome of each lesson, and the number of those passed.

    Columns with the attempts, hints, prediction and score of each lesson follow.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    rows = rows_of(grades)
    lessons = list(dict.fromkeys(grade.lesson for grade in grades))
    par = _pars(grades)
    about = [f"{lesson} {name}" for lesson in lessons for name in ("attempts", "hints", "prediction", *par[lesson])]
    writer.writerow(["student", *lessons, "passed", *about])
    told = {(grade.student, grade.lesson): (grade.attempts, grade.hints, _cell(grade.prediction)) for grade in grades}
    for student, row in rows.items():
        words = [row[lesson].status for lesson in lessons]
        more: list[object] = []
        for lesson in lessons:
            score = {name: f"{value:.10g}" for name, value in row[lesson].score.items()}
            more += [*told[student, lesson], *(score.get(name, "") for name in par[lesson])]
        writer.writerow([_cell(student), *words, words.count("passed"), *more])
    return text.getvalue()


def _pars(grades: Sequence[Grade]) -> dict[str, dict[str, float]]:
    pars: dict[str, dict[str, float]] = {}
    for grade in grades:
        pars.setdefault(grade.lesson, {}).update(grade.par)
    return pars


def _cell(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA) else text


def to_json(grades: Sequence[Grade]) -> str:
    """Return all grades with every finding, as JSON."""
    values: list[dict[str, Any]] = [
        {
            **{"student": grade.student, "lesson": grade.lesson, "outcome": grade.outcome.status},
            **{"seconds": grade.outcome.seconds, "attempts": grade.attempts, "hints": grade.hints},
            **{"prediction": grade.prediction, "prediction_is_right": grade.agrees, "script": grade.script},
            **{"score": dict(grade.outcome.score), "par": dict(grade.par)},
            "findings": [
                {"id": each.id, "status": each.status, "detail": each.detail, "place": each.place}
                for each in grade.outcome.findings
            ],
        }
        for grade in grades
    ]
    return json.dumps({"schema_version": 1, "grades": values}, indent=2) + "\n"


def read_grades(text: str) -> list[Grade]:
    """Return the grades that `to_json` wrote; raise ValueError if the text is something else."""
    try:
        return [
            Grade(
                **{name: each[name] for name in _KEPT},
                agrees=each["prediction_is_right"],
                par=dict(each["par"]),
                outcome=conclude(
                    tuple(Finding(**finding) for finding in each["findings"]),
                    seconds=each["seconds"],
                    score=dict(each["score"]),
                ),
            )
            for each in json.loads(text)["grades"]
        ]
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"these are no grades: {error!r}") from None


def to_html(grades: Sequence[Grade]) -> str:
    """Return a page with the table of the class, and the evidence below."""
    lessons = list(dict.fromkeys(grade.lesson for grade in grades))
    pars = _pars(grades)

    def score(lesson: str, outcome: Outcome) -> str:
        return ", ".join(score_text(name, value, par=pars[lesson][name]) for name, value in outcome.score.items())

    return _PAGE.render(lessons=lessons, rows=rows_of(grades), marks=MARKS, score=score)


def to_junit(grades: Sequence[Grade]) -> str:
    """Return a test suite for each student; what could not be judged is an error."""
    suites = Element("testsuites")
    for student, row in rows_of(grades).items():
        statuses = [outcome.status for outcome in row.values()]
        seconds = sum(outcome.seconds for outcome in row.values())
        suite = SubElement(suites, "testsuite", name=xml_text(student), tests=str(len(row)), time=f"{seconds:.3f}")
        suite.set("failures", str(statuses.count("failed")))
        suite.set("errors", str(statuses.count("unjudged")))
        for lesson, outcome in row.items():
            case = SubElement(
                suite, "testcase", classname=xml_text(student), name=lesson, time=f"{outcome.seconds:.3f}"
            )
            if reason := outcome.reason:
                text = xml_text(f"{reason.id}: {reason.detail}")
                SubElement(case, _TAGS[outcome.status], message=text, type=reason.id).text = text
    indent(suites)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + tostring(suites, encoding="unicode") + "\n"


FORMATS = {"csv": to_csv, "json": to_json, "html": to_html, "junit": to_junit}
