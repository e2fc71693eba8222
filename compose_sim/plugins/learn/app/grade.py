"""Grade the folders of a class: run every script with the course's own files, and keep the machine safe from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from compose_sim.engine.project_owner import check_project
from compose_sim.engine.run_folder.safe_files import SafeFolder
from compose_sim.errors import ComposesimError, SpecError
from compose_sim.plugins.learn.app.attempt import LessonEngine, attempt
from compose_sim.plugins.learn.app.author import staged
from compose_sim.plugins.learn.app.course_folder import SCRIPT, LessonFolder
from compose_sim.plugins.learn.core.gradebook import Grade
from compose_sim.plugins.learn.core.outcome import Finding, Outcome, Status, conclude

_MOST_BYTES = 1 << 20  # of a script


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
        script = SafeFolder(folder / lesson.name).read_bytes(SCRIPT, size=_MOST_BYTES + 1)  # follows no link
        text = script.decode("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return _without_run("failed", f"{lesson.name}/{SCRIPT} was not handed in")
    except UnicodeDecodeError as error:
        return _without_run("failed", f"{SCRIPT} is no text: {error}")
    except (OSError, ComposesimError) as error:
        return _without_run("unjudged", f"{SCRIPT} could not be read: {error}")
    if len(script) > _MOST_BYTES:
        return _without_run("failed", f"{SCRIPT} is larger than {_MOST_BYTES} bytes")
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
