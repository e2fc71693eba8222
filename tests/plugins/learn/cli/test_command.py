"""`composesim learn` as a student and a teacher type it; no attempt here starts a run, as the scripts are missing."""

from __future__ import annotations

import csv
import io
import json

from tests.cli.conftest import Project


def test_a_student_begins_asks_and_resets(project: Project) -> None:
    assert project.run("learn", "init", "lessons").returncode == 0
    here = Project(project.folder / "lessons")
    script = here.folder / "03-epochs" / "script.py"
    delivered = script.read_text()
    script.unlink()

    guess = here.run("learn", "predict", "3", "--answer", "3 orders")
    attempt = here.run("learn", "run", "3")
    late = here.run("learn", "predict", "3", "--answer", "1")
    hint = here.run("learn", "hint")
    early = here.run("learn", "solution", "3")

    assert (guess.returncode, attempt.returncode, early.returncode, late.returncode) == (0, 1, 2, 2)
    assert (
        json.loads((here.folder / ".composesim" / "lessons.json").read_text())["lessons"]["03-epochs"]["prediction"]
        == "3 orders"
    )
    assert "there is no 03-epochs/script.py" in attempt.stdout
    assert hint.stdout.count("Hint 1 of 3") == 1
    assert "Try: composesim learn hint 03-epochs" in early.stderr
    script.write_text("mine")
    assert here.run("learn", "reset").returncode == 0
    assert script.read_text() == delivered
    assert script.with_name("script.py.bak").read_text() == "mine"
    listed = next(line for line in here.run("learn", "list").stdout.splitlines() if "03-epochs" in line)
    assert listed.split()[0] == "▸"
    assert listed.split()[-2:] == ["1", "1"]


def test_a_question_is_printed_and_an_empty_answer_is_refused(project: Project) -> None:
    assert project.run("learn", "init", "lessons").returncode == 0
    here = Project(project.folder / "lessons")

    asked = here.run("learn", "predict", "3")
    (here.folder / "04-wrapper/script.py").unlink()
    run = here.run("learn", "run", "4")  # not in a terminal, so nothing can be answered
    empty = here.run("learn", "predict", "3", "--answer", " ")
    kept = here.run("learn", "predict", "3", "--answer", "3")

    assert " ".join(asked.stdout.split()).endswith("?")
    assert run.stdout.lstrip().startswith("Predict, before you run it: ")
    assert (asked.returncode, empty.returncode, kept.returncode) == (0, 2, 0)
    assert "Try: composesim learn predict 03-epochs" in empty.stderr


def test_a_class_is_written_in_four_formats(project: Project) -> None:
    for student in ("ada", "bob"):
        (project.folder / student).mkdir()
    files = {name: f"grades.{name}" for name in ("csv", "json", "html", "junit")}
    options = [word for name, file in files.items() for word in (f"--{name}", file)]

    (project.folder / "notes.txt").write_text("a file that a pattern may match")
    students = ("ada", "notes.txt", "bob")

    ended = project.run("learn", "grade", "--trust", "--lesson", "1", "--lesson", "hang", *options, *students)

    assert ended.returncode == 1, ended.stderr
    texts = {name: (project.folder / file).read_text() for name, file in files.items()}
    assert [row[:4] for row in csv.reader(io.StringIO(texts["csv"]))] == [
        ["student", "01-ranks", "08-hang", "passed"],
        ["ada", "failed", "failed", "0"],
        ["bob", "failed", "failed", "0"],
    ]
    assert {grade["outcome"] for grade in json.loads(texts["json"])["grades"]} == {"failed"}
    assert "was not handed in" in texts["html"]
    assert texts["junit"].count("<failure") == 4


def test_explain_prints_a_term_and_its_drawing(project: Project) -> None:
    ended = project.run("explain", "allreduce")

    assert ended.returncode == 0
    assert ended.stdout.splitlines()[0] == "all-reduce"
    assert ended.stdout.count("rank 0 ") == 3


def test_an_option_that_is_meant_as_a_command_is_recognized(project: Project) -> None:
    done = project.run("learn", "--list")

    assert done.returncode == 2
    assert "Did you mean 'composesim learn list'?" in done.stderr
