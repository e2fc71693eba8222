"""Help teachers: start a course, prove that its solutions pass and its scripts fail as they say, and grade a class."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from compose_sim.engine.project_owner import check_project
from compose_sim.engine.run_folder.safe_files import SafeFolder, write_file
from compose_sim.errors import ComposesimError, SpecError
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
from compose_sim.plugins.learn.core.gradebook import Grade
from compose_sim.plugins.learn.core.outcome import Finding, Outcome, Status, conclude

MAX_WORDS = 400  # of a page
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
    if words > MAX_WORDS:
        problems.append(f"{PAGE} has {words} words; at most {MAX_WORDS}")
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


_MAX_BYTES = 1 << 20  # of a script


def grade(folders: Sequence[Path], lessons: Sequence[LessonFolder], *, engine: LessonEngine) -> Iterator[Grade]:
    """
    Yield a grade for each student and lesson; a student is a folder as `learn init` makes it.

    A script runs in a temporary project without the files of others. Raises KeyboardInterrupt if the user interrupts an attempt.
    """
    names = [folder.resolve().name for folder in folders]
    if len(set(names)) < len(names):
        names = [str(folder) for folder in folders]
    for folder, student in zip(folders, names, strict=True):
        check_project(folder, *(folder / lesson.name for lesson in lessons))
        if not folder.is_dir():
            raise SpecError(f"'{folder}' is not the folder of a student", hint=f"ls {folder.parent}")
        for lesson in lessons:
            yield Grade(student=student, lesson=lesson.name, outcome=_outcome(folder, lesson, engine))


def _outcome(folder: Path, lesson: LessonFolder, engine: LessonEngine) -> Outcome:
    try:
        script = SafeFolder(folder / lesson.name).read_bytes(SCRIPT, size=_MAX_BYTES + 1)  # follows no link
        text = script.decode("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return _without_run("failed", f"{lesson.name}/{SCRIPT} was not handed in")
    except UnicodeDecodeError as error:
        return _without_run("failed", f"{SCRIPT} is no text: {error}")
    except (OSError, ComposesimError) as error:
        return _without_run("unjudged", f"{SCRIPT} could not be read: {error}")
    if len(script) > _MAX_BYTES:
        return _without_run("failed", f"{SCRIPT} is larger than {_MAX_BYTES} bytes")
    try:
        with staged(lesson, text) as project:
            result = attempt(lesson, project, engine=engine)
    except ComposesimError as error:
        hint = f"Try: {error.hint}" if error.hint else ""
        return _without_run("unjudged", "\n".join(filter(None, (error.message, error.evidence, hint))))
    if result.was_interrupted:
        raise KeyboardInterrupt
    return result.outcome


def _without_run(status: Status, why: str) -> Outcome:
    return conclude((Finding(id="run", status=status, detail=why),), seconds=0.0)
