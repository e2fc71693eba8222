"""A lesson file is checked: wrong values are errors with file, line and key."""

from __future__ import annotations

import pytest

from compose_sim.errors import SpecError
from compose_sim.plugins.learn.core.lesson import MetricBound, parse_lesson

LESSON = """\
title: T
program: harness.py
number: 12288
goal: G
question: Q
answer: A
why: W
hints: [one, two, three]
pass:
  steps: 4
  checks: [set-epoch]
  metrics:
    total: {equals: 3}
fails: set-epoch
"""


def test_requirements_are_in_the_order_of_judgment() -> None:
    assert parse_lesson(LESSON, "lesson.yaml").requirements == ("run", "steps", "set-epoch", "total")


def test_budgets_are_limits_and_tolerances_are_not() -> None:
    metrics = "{at_most: 130000}\n    end_differs: {at_most: 0.0005}\n    steps: {at_least: 2}"

    assert parse_lesson(LESSON.replace("{equals: 3}", metrics), "lesson.yaml").limits == ("total at most 130,000",)


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("checks: [set-epoch]", "checks: [set-epoc]", 11, "set-epoc"),
        ("hints: [one, two, three]", "hints: [one, two]", 8, "hints"),
        ("steps: 4", "step: 4", 10, "did you mean 'steps'"),
        ("fails: set-epoch", "fails: hang", 1, "'hang' is not a requirement"),
        ("{equals: 3}", "{}", 13, "one of equals, at_least and at_most"),
        ("title: T\n", "", 1, "'title' is missing"),
        ("fails:", "score: {total: -1}\nfails:", 14, "total"),
        ("fails:", "score: {total: .nan}\nfails:", 14, "total"),
    ],
)
def test_a_wrong_value_is_named_with_its_line(old: str, new: str, line: int, words: str) -> None:
    with pytest.raises(SpecError) as error:
        parse_lesson(LESSON.replace(old, new), "lesson.yaml")

    assert words in f"{error.value.message}{error.value.evidence}"
    assert f"lesson.yaml, line {line}" in f"{error.value.message}{error.value.evidence}"


def test_a_lesson_that_requires_nothing_is_refused() -> None:
    text = LESSON.partition("pass:")[0] + "pass: {}\nfails: run\n"

    with pytest.raises(SpecError, match="an empty script would pass"):
        parse_lesson(text, "lesson.yaml")


@pytest.mark.parametrize("pair", [("program: harness.py\n", ""), ("steps: 4", "orders: 4")])
def test_a_requirement_that_cannot_be_measured_is_refused(pair: tuple[str, str]) -> None:
    with pytest.raises(SpecError):
        parse_lesson(LESSON.replace(*pair), "lesson.yaml")


@pytest.mark.parametrize("program", ["program: harness.py\n", ""])
def test_only_a_program_of_the_course_measures_a_score(program: str) -> None:
    text = (
        LESSON.replace("program: harness.py\n", program).partition("  metrics:")[0]
        + "score: {total: 3}\nfails: set-epoch\n"
    )

    if program:
        assert parse_lesson(text, "lesson.yaml").score == {"total": 3}
    else:
        with pytest.raises(SpecError, match="score: a script can print any number"):
            parse_lesson(text, "lesson.yaml")


@pytest.mark.parametrize(
    ("prediction", "agrees"),
    [
        *(("12288", True), ("I think 12,288.", True), ("3 × 4096 = 12288!", True), ("12288.0", True)),
        *(("6144", False), ("-12288", False), ("many", None), ("", None)),
    ],
)
def test_numbers_in_a_prediction_are_compared(prediction: str, *, agrees: bool | None) -> None:
    assert parse_lesson(LESSON, "lesson.yaml").agrees(prediction) is agrees
    assert parse_lesson(LESSON.replace("number: 12288\n", ""), "lesson.yaml").agrees(prediction) is None


@pytest.mark.parametrize(
    ("bound", "value", "holds"),
    [
        (MetricBound(equals=3), 3.0, True),
        (MetricBound(equals=3), 3.1, False),
        (MetricBound(equals=0), 0.0, True),
        (MetricBound(at_least=2, at_most=3), 2.5, True),
        (MetricBound(at_least=2, at_most=3), 3.5, False),
        (MetricBound(at_least=2), float("nan"), False),
        (MetricBound(equals=2), float("nan"), False),
    ],
)
def test_bounds(bound: MetricBound, value: float, *, holds: bool) -> None:
    assert bound.holds(value) == holds
