"""A class is graded with the course's own files; scripts that are missing, unreadable, empty or endless are not passed."""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compose_sim.plugins.learn.app import author
from compose_sim.plugins.learn.app.attempt import Attempt, attempt
from compose_sim.plugins.learn.app.author import grade, prove
from compose_sim.plugins.learn.app.course_folder import SOLUTION, CourseFolder, LessonFolder, read_course
from compose_sim.plugins.learn.core.gradebook import read_grades, to_json
from compose_sim.plugins.learn.core.outcome import Outcome
from tests.builders import PATIENCE_S

ENDLESS = "while True: pass\n"  # one line, in which both ranks are


def a_course(folder: Path, *, score: str = "{}") -> CourseFolder:
    """Return a course with one lesson: print the world size."""
    texts = {
        "course.yaml": "{title: T, welcome: W, farewell: F}",
        "lessons/01-size/lesson.yaml": "{title: T, goal: G, question: Q, answer: A, why: W, hints: [a, b, c], nodes: 1, "
        "ranks_per_node: 2, program: harness.py, pass: {metrics: {size: {equals: 2}}}, fails: size, "
        f"score: {score}}}",
        "lessons/01-size/script.py": "SIZE = 1\n",
        "lessons/01-size/solution.py": "import os\n\nSIZE = int(os.environ['WORLD_SIZE'])\n",
        "lessons/01-size/harness.py": "import json\nimport os\n\ntoken = os.environ.pop('COMPOSESIM_LESSON')\n\nimport script\n\n"
        "print(json.dumps({'size': script.SIZE, 'token': token}))\n",
        "lessons/01-size/page.md": "# Size\n",
    }
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return read_course(folder)


def a_student(folder: Path, script: str | None) -> Path:
    (folder / "01-size").mkdir(parents=True)
    (folder / "01-size" / "harness.py").write_text('print(\'{"step": 1, "size": 2}\')\n')  # not the course's
    if script is not None:
        (folder / "01-size" / "script.py").write_text(script)
    return folder


@pytest.mark.train
def test_a_class(tmp_path: Path) -> None:
    lesson = a_course(tmp_path / "course").lessons["01-size"]
    scripts = {
        **{"right": lesson.read("solution.py"), "wrong": lesson.read("script.py"), "emptied": ""},
        "forged": 'import os\n\nprint(\'{"size": 2, "token": ""}\', flush=True)\nos._exit(0)\n',
    }
    folders = [a_student(tmp_path / "class" / name, script) for name, script in scripts.items()]

    grades = {each.student: each.outcome for each in grade(folders, [lesson], engine="local")}

    assert {name: (outcome.status, reason_of(outcome)) for name, outcome in grades.items()} == {
        "right": ("passed", ""),
        "wrong": ("failed", "size"),
        "emptied": ("failed", "run"),
        "forged": ("failed", "size"),
    }


@pytest.mark.train
def test_a_class_is_graded_at_the_same_time_and_goes_on_after_an_interruption(tmp_path: Path) -> None:
    """What was graded is not run again while the script is the same; predictions come from the student's folder."""
    lesson = a_course(tmp_path / "course").lessons["01-size"]
    scripts = {"ada": lesson.read("solution.py"), "bob": lesson.read("script.py")}
    folders = [a_student(tmp_path / "class" / name, script) for name, script in scripts.items()]
    progress = {"attempts": 4, "hints": 1, "prediction": "perhaps 2?"}
    (folders[0] / ".composesim").mkdir()
    (folders[0] / ".composesim" / "lessons.json").write_text(json.dumps({"lessons": {lesson.name: progress}}))

    grades = [*grade(folders, [lesson], engine="local", jobs=2)]
    known = read_grades(to_json(grades))
    marked = [replace(each, outcome=replace(each.outcome, seconds=7.0)) for each in known]
    (folders[1] / "01-size" / "script.py").write_text(scripts["ada"])
    again = {each.student: each for each in grade(folders, [lesson], engine="local", known=marked)}

    assert known == grades
    assert {each.student: each.outcome.status for each in grades} == {"ada": "passed", "bob": "failed"}
    assert (grades[0].attempts, grades[0].hints, grades[0].prediction) == (4, 1, "perhaps 2?")
    assert again["ada"].outcome.seconds == 7.0
    assert again["bob"].outcome.status == "passed"


@pytest.mark.train
def test_a_lesson_is_proved_by_every_script_of_its_two_folders(tmp_path: Path) -> None:
    course = a_course(tmp_path / "course")
    folder = course.lessons["01-size"].path
    for name, text in {"accept/two.py": "SIZE = 2\n", "reject/also_two.py": "SIZE = 1 + 1\n"}.items():
        (folder / name).parent.mkdir()
        (folder / name).write_text(text)

    proof = prove(course.lessons["01-size"])

    statuses = {name: outcome.status for name, outcome in proof.outcomes.items()}
    assert statuses == {
        **{"solution.py": "passed", "accept/two.py": "passed"},
        **{"script.py": "failed", "reject/also_two.py": "passed"},
    }
    assert [problem.partition(" ")[0] for problem in proof.problems] == ["reject/also_two.py"]


@pytest.mark.train
@pytest.mark.parametrize(
    ("score", "problems"), [({"size": 2}, 0), ({"size": 1.5}, 1), ({"size": 3}, 1), ({"size": 2, "sizes": 2}, 1)]
)
def test_the_solution_must_reach_par_and_the_program_must_measure_it(
    tmp_path: Path, score: dict[str, float], problems: int
) -> None:
    lesson = a_course(tmp_path / "course").lessons["01-size"]

    proof = prove(replace(lesson, lesson=lesson.lesson.model_copy(update={"score": score})))

    assert proof.outcomes["solution.py"].score == {"size": 2}
    assert proof.outcomes["script.py"].score == {}
    assert [problem.partition(":")[0] for problem in proof.problems] == ["score"] * problems


@pytest.mark.train
def test_an_endless_loop_ends_with_the_time_limit(tmp_path: Path) -> None:
    lesson = a_course(tmp_path / "course").lessons["01-size"]
    short = replace(lesson, lesson=lesson.lesson.model_copy(update={"timeout": 3.0}))

    (only,) = grade([a_student(tmp_path / "endless", ENDLESS)], [short], engine="local")

    assert (only.outcome.status, reason_of(only.outcome)) == ("failed", "run")


@pytest.mark.train
def test_an_endless_loop_may_take_three_times_as_long_as_the_solution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A class would else wait a minute for each; the student reads in which line the loop was."""
    attempts: list[tuple[float, float, float]] = []  # the limit of each, when it began, and when it had ended

    def timed(lesson: LessonFolder, project: Path, **options: Any) -> Attempt:
        began = time.monotonic()
        result = attempt(lesson, project, **options)
        attempts.append((lesson.lesson.timeout, began, time.monotonic()))
        return result

    monkeypatch.setattr(author, "attempt", timed)
    monkeypatch.setattr(author, "_LEAST_S", 0.0)
    lesson = a_course(tmp_path / "course").lessons["01-size"]
    patient = replace(
        lesson, lesson=lesson.lesson.model_copy(update={"timeout": PATIENCE_S, "hang_timeout": PATIENCE_S})
    )

    began = time.monotonic()
    (only,) = grade([a_student(tmp_path / "endless", ENDLESS)], [patient], engine="local")

    (allowed, solution_began, solution_ended), (limit, student_began, student_ended) = attempts
    assert allowed == PATIENCE_S
    # Copying the project counts as well, and takes long on a busy machine.
    assert 3 * (solution_ended - solution_began) <= limit <= 3 * (student_began - began)
    assert limit <= student_ended - student_began
    assert (only.outcome.status, reason_of(only.outcome)) == ("failed", "run")
    assert only.outcome.reason is not None
    assert re.search(r"not done after .*: ranks 0, 1 in .*script\.py, line 1: ", only.outcome.reason.detail)


def reason_of(outcome: Outcome) -> str:
    return outcome.reason.id if outcome.reason else ""


HOSTILE = f"""
import os, socket

def reaches(path_or_host):
    try:
        if isinstance(path_or_host, str):
            return bool(os.listdir(path_or_host) if os.path.isdir(path_or_host) else open(path_or_host).read(1))
        return bool(socket.create_connection(path_or_host, 2))
    except OSError:
        return False

reached = [
    *filter(reaches, ["/etc/shadow", "/var/run/docker.sock", {str(Path.home() / ".ssh")!r}, CLASS, *ANSWERS]),
    *filter(reaches, [("1.1.1.1", 53), ("169.254.169.254", 80), ("172.17.0.1", 22)]),
    *([] if os.getuid() else ["root"]),
]
print(reached, flush=True)
SIZE = 2 + len(reached)
"""


@pytest.mark.docker
def test_a_hostile_script_reaches_nothing_in_a_container(tmp_path: Path) -> None:
    """The lesson is passed only if the script has reached no secret, no other student, no solution, no network, and is not root."""
    lesson = a_course(tmp_path / "course").lessons["01-size"]
    answers = [
        str(folder / SOLUTION) for folder in (lesson.path, *(each.path for each in read_course().lessons.values()))
    ]
    script = HOSTILE.replace("CLASS", repr(str(tmp_path / "class"))).replace("ANSWERS", repr(answers))
    student = a_student(tmp_path / "class" / "hostile", script)

    (only,) = grade([student], [lesson], engine="docker")

    assert only.outcome.status == "passed", only.evidence


@pytest.mark.train
def test_what_cannot_be_run_is_not_run(tmp_path: Path) -> None:
    """A link could lead to a file of the teacher, a pipe would block the grader."""
    lesson = a_course(tmp_path / "course").lessons["01-size"]
    folders = {
        name: a_student(tmp_path / name, None) for name in ("absent", "link", "pipe", "large", "binary", "broken")
    }
    (folders["link"] / "01-size" / "script.py").symlink_to("/etc/passwd")
    os.mkfifo(folders["pipe"] / "01-size" / "script.py")
    (folders["large"] / "01-size" / "script.py").write_text("#" * (1 << 20) + "\n")
    (folders["binary"] / "01-size" / "script.py").write_bytes(b"\xff\xfe")
    (folders["broken"] / "01-size" / "script.py").write_text("def (:\n")

    outcomes = {each.student: each.outcome for each in grade([*folders.values()], [lesson], engine="local")}

    assert {name: outcome.status for name, outcome in outcomes.items()} == {
        **{"absent": "failed", "link": "unjudged", "pipe": "unjudged"},
        **{"large": "failed", "binary": "failed", "broken": "failed"},
    }
    assert all(outcome.seconds == 0 for outcome in outcomes.values())
