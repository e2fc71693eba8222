"""The folder of a student: what is delivered, what is kept, and when the solution is shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from compose_sim.errors import SpecError
from compose_sim.plugins.learn.app.course_folder import SOLUTION, read_course
from compose_sim.plugins.learn.app.workbook import Workbook
from compose_sim.plugins.learn.core.outcome import Finding, conclude

PASSED = conclude((Finding(id="run", status="passed", detail=""),), seconds=1.0)
FAILED = conclude((Finding(id="run", status="failed", detail=""),), seconds=1.0)


@pytest.fixture
def workbook(tmp_path: Path) -> Workbook:
    return Workbook.begin(tmp_path / "lessons", read_course(), shipped=True)


def test_the_course_is_delivered_without_solutions(workbook: Workbook) -> None:
    lesson = workbook.current

    assert workbook.script(lesson).read_text() == lesson.read("script.py")
    assert {path.name for path in workbook.folder.rglob("*.*")}.isdisjoint({SOLUTION, "lesson.yaml"})


def test_progress_survives_and_the_solution_comes_after_success(workbook: Workbook) -> None:
    lesson = workbook.current
    workbook.record(lesson, FAILED)
    with pytest.raises(SpecError, match="not passed yet"):
        workbook.solution(lesson.name)
    workbook.record(lesson, PASSED)
    workbook.record(lesson, FAILED)  # a later attempt does not take it back

    again = Workbook.find(workbook.folder / lesson.name)

    assert again.progress(lesson).attempts == 3
    assert again.solution(lesson.name) == lesson.read(SOLUTION)
    following = again.next_lesson()
    assert following is not None
    assert following.name.startswith("02-")


def test_the_best_of_each_number_survives_worse_attempts_and_reset(workbook: Workbook) -> None:
    lesson = workbook.current
    for score in ({"bytes": 8.0, "messages": 6.0}, {"bytes": 16.0, "messages": 4.0}, {}):
        workbook.record(lesson, replace(PASSED, score=score))
    workbook.reset(lesson)

    assert Workbook.find(workbook.folder).progress(lesson).best == {"bytes": 8, "messages": 4}


def test_each_hint_is_one_more(workbook: Workbook) -> None:
    lesson = workbook.current

    assert [len(workbook.hints(lesson)) for _ in range(4)] == [1, 2, 3, 3]


def test_reset_keeps_the_script_of_the_student(workbook: Workbook) -> None:
    lesson = workbook.current
    workbook.script(lesson).write_text("mine")

    assert workbook.reset(lesson).read_text() == "mine"
    assert workbook.script(lesson).read_text() == lesson.read("script.py")


def test_a_second_init_is_refused_and_a_script_that_exists_remains(tmp_path: Path) -> None:
    script = tmp_path / "01-ranks" / "script.py"
    script.parent.mkdir()
    script.write_text("mine")

    Workbook.begin(tmp_path, read_course(), shipped=True)

    assert script.read_text() == "mine"
    with pytest.raises(SpecError, match="already holds a course"):
        Workbook.begin(tmp_path, read_course(), shipped=True)


@pytest.mark.parametrize(("name", "found"), [("3", "03-epochs"), ("03-epochs", "03-epochs"), ("epochs", "03-epochs")])
def test_a_lesson_is_found_by_number_or_name(name: str, found: str) -> None:
    assert read_course().find(name).name == found


def test_a_folder_without_lessons_says_how_to_begin(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as error:
        Workbook.find(tmp_path)

    assert error.value.hint == "composesim learn init lessons && cd lessons"
