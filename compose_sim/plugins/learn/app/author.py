"""Help to write a course: start one, and prove that its solutions pass and its scripts fail for the reason that they name."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from compose_sim.engine.project_owner import check_project
from compose_sim.engine.run_folder.safe_files import write_file
from compose_sim.errors import SpecError
from compose_sim.plugins.learn.app.attempt import LessonEngine, attempt
from compose_sim.plugins.learn.app.course_folder import (
    PAGE,
    SCRIPT,
    SOLUTION,
    TEMPLATES,
    LessonFolder,
    read_course,
    read_text,
)
from compose_sim.plugins.learn.core.outcome import Outcome

MOST_WORDS = 400  # of a page
_SCHEMA = "# yaml-language-server: $schema={}\n"  # for editors


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What a lesson is worth: the outcomes of its two scripts, and what is wrong with it."""

    lesson: str
    solution: Outcome
    delivered: Outcome
    problems: tuple[str, ...] = ()


@contextmanager
def staged(lesson: LessonFolder, script: str | None) -> Iterator[Path]:
    """Make a temporary project that holds only the script of one attempt, if there is one, and delete it afterwards."""
    with tempfile.TemporaryDirectory(prefix="composesim-lesson-", ignore_cleanup_errors=True) as name:
        folder = Path(name) / lesson.name
        folder.mkdir()
        if script is not None:
            write_file(folder / SCRIPT, script)
        Path(name).chmod(0o755)  # nodes may run as another user
        yield Path(name)


def prove(lesson: LessonFolder, *, engine: LessonEngine = "local") -> Proof:
    """Run the solution and the delivered script of a lesson, and return what is wrong with the lesson."""
    outcomes = []
    for name in (SOLUTION, SCRIPT):
        with staged(lesson, lesson.read(name)) as project:
            outcomes.append(attempt(lesson, project, engine=engine).outcome)
    solution, delivered = outcomes
    problems = []
    if solution.status != "passed":
        reason = solution.reason
        problems.append(f"{SOLUTION} does not pass: {reason.id}: {reason.detail}" if reason else "")
    first = delivered.reason
    if delivered.status != "failed" or first is None:
        problems.append(f"{SCRIPT} does not fail: it is {delivered.status}")
    elif first.id != lesson.lesson.fails:
        problems.append(f"{SCRIPT} fails for '{first.id}', not for '{lesson.lesson.fails}': {first.detail}")
    words = len(lesson.read(PAGE).split())
    if words > MOST_WORDS:
        problems.append(f"{PAGE} has {words} words; at most {MOST_WORDS}")
    return Proof(lesson=lesson.name, solution=solution, delivered=delivered, problems=tuple(problems))


def begin_course(folder: Path) -> list[Path]:
    """Write a new course with one lesson that works, and return the files; raise SpecError if the folder has one."""
    check_project(folder)
    if (folder / "course.yaml").exists():
        raise SpecError(f"'{folder}' already holds a course", hint=f"composesim learn dev check {folder}")
    example = next(iter(read_course().lessons.values()))
    texts = {"course.yaml": "title: A new course\nwelcome: What the student reads first.\nfarewell: Well done.\n"}
    texts |= {
        f"lessons/01-first/{each.name}": read_text(each) for each in sorted(example.path.iterdir()) if each.is_file()
    }
    texts |= {name: read_text(TEMPLATES / name) for name in ("course.schema.json", "lesson.schema.json")}
    texts["course.yaml"] = _SCHEMA.format("course.schema.json") + texts["course.yaml"]
    texts["lessons/01-first/lesson.yaml"] = (
        _SCHEMA.format("../../lesson.schema.json") + texts["lessons/01-first/lesson.yaml"]
    )
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_file(folder / name, text)
    return [folder / name for name in texts]
