"""Keep the folder of a student: the delivered files, and the progress in `.composesim/lessons.json`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from compose_sim.core.json_values import from_json
from compose_sim.engine.project_owner import check_project
from compose_sim.engine.run_folder.safe_files import SafeFolder, write_file
from compose_sim.errors import ComposesimError, SpecError
from compose_sim.plugins.learn.app.course_folder import (
    SCRIPT,
    SOLUTION,
    CourseFolder,
    LessonFolder,
    read_course,
    read_text,
)
from compose_sim.plugins.learn.core.notebook import to_notebook
from compose_sim.plugins.learn.core.outcome import Outcome

_STATE = ".composesim/lessons.json"
_MAX_BYTES = 1 << 20  # of the progress of somebody else
_MAX_PREDICTION = 200  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a student has done in one lesson."""

    attempts: int = 0
    hints: int = 0  # how many were read
    passed_at: float | None = None  # Unix seconds
    prediction: str | None = None  # the answer to the question before the first run; "" if it was skipped
    best: Mapping[str, float] = field(default_factory=dict)  # the lowest of each number of the score


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    course: str = ""  # the folder of the course; "" for the one that ships
    current: str = ""
    lessons: Mapping[str, Progress] = field(default_factory=dict)


class Workbook:
    """The folder in which a student works through a course."""

    def __init__(self, folder: Path, course: CourseFolder, state: _State) -> None:
        self.folder, self.course, self._state = folder, course, state

    @classmethod
    def begin(cls, folder: Path, course: CourseFolder, *, shipped: bool) -> Workbook:
        """Write the files of a course into a folder; raise SpecError if it already holds one. Existing scripts remain."""
        check_project(folder)
        if (folder / _STATE).exists():
            raise SpecError(f"'{folder}' already holds a course", hint=f"cd {folder} && composesim learn")
        state = _State(course="" if shipped else str(course.path.resolve()), current=next(iter(course.lessons)))
        workbook = cls(folder, course, state)
        for lesson in course.lessons.values():
            (folder / lesson.name).mkdir(parents=True, exist_ok=True)
            for name, text in lesson.delivered.items():
                if not (folder / lesson.name / name).exists():
                    write_file(folder / lesson.name / name, text)
        workbook._save(state)
        return workbook

    @classmethod
    def find(cls, folder: Path) -> Workbook:
        """Return the workbook in a folder or above it; raise SpecError if there is none."""
        home = next((each for each in (folder, *folder.parents) if (each / _STATE).is_file()), None)
        if home is None:
            raise SpecError(f"'{folder}' holds no lessons", hint="composesim learn init lessons && cd lessons")
        check_project(home)
        try:
            state = from_json(_State, json.loads(read_text(home / _STATE)))
        except ValueError as error:
            raise SpecError(
                f"'{home / _STATE}' is damaged: {error}", hint=f"mv {home / _STATE} {home / _STATE}.bak"
            ) from None
        return cls(home, read_course(Path(state.course) if state.course else None), state)

    @staticmethod
    def handed_in(folder: Path) -> Mapping[str, Progress]:
        """Return the progress that is kept in the folder of somebody else, by lesson; none if there is none, or it is damaged."""
        try:
            state = from_json(_State, json.loads(SafeFolder(folder).read_bytes(_STATE, size=_MAX_BYTES)))
        except (OSError, ComposesimError, ValueError, RecursionError):
            return {}
        return state.lessons

    @property
    def current(self) -> LessonFolder:
        """The lesson to work on: the one that was chosen last."""
        lessons = self.course.lessons
        return lessons.get(self._state.current) or next(iter(lessons.values()))

    def progress(self, lesson: LessonFolder) -> Progress:
        """Return what the student has done in a lesson."""
        return self._state.lessons.get(lesson.name, Progress())

    def choose(self, lesson: LessonFolder) -> None:
        """Make a lesson the current one."""
        self._save(replace(self._state, current=lesson.name))

    def next_lesson(self) -> LessonFolder | None:
        """Return the first lesson after the current one that is not passed, else the first of all; None if all are."""
        lessons = [*self.course.lessons.values()]
        after = lessons.index(self.current) + 1
        return next((each for each in [*lessons[after:], *lessons[:after]] if not self.progress(each).passed_at), None)

    def record(self, lesson: LessonFolder, outcome: Outcome) -> None:
        """Count an attempt; the first that passes also brings the solution. Of each number of its score, the best is kept."""
        before = self.progress(lesson)
        passed_at = before.passed_at or (time.time() if outcome.status == "passed" else None)
        best = {
            **before.best,
            **{name: min(value, before.best.get(name, value)) for name, value in outcome.score.items()},
        }
        self._update(lesson, replace(before, attempts=before.attempts + 1, passed_at=passed_at, best=best))

    def predict(self, lesson: LessonFolder, answer: str) -> None:
        """Keep the student's answer to the question of a lesson; the first one counts."""
        before = self.progress(lesson)
        if not before.prediction:
            self._update(lesson, replace(before, prediction=answer.strip()[:_MAX_PREDICTION]))

    def must_predict(self, lesson: LessonFolder) -> bool:
        """Return whether the student has not been asked yet, and has not seen a run either."""
        before = self.progress(lesson)
        return before.prediction is None and not before.attempts

    def hints(self, lesson: LessonFolder) -> tuple[str, ...]:
        """Return the hints that were read, and one more."""
        before = self.progress(lesson)
        count = min(before.hints + 1, len(lesson.lesson.hints))
        self._update(lesson, replace(before, hints=count))
        return lesson.lesson.hints[:count]

    def reset(self, lesson: LessonFolder) -> Path:
        """Restore the delivered script, keep the student's as `script.py.bak`, and return the path of that."""
        script = self.script(lesson)
        backup = script.with_name(f"{SCRIPT}.bak")
        if script.is_file():
            write_file(backup, read_text(script))
        write_file(script, lesson.read(SCRIPT))
        return backup

    def solution(self, name: str | None) -> str:
        """Return the solution of a lesson, by default the one that was passed last; raise SpecError if it is not passed yet."""
        passed = [(progress.passed_at, lesson) for lesson, progress in self.rows() if progress.passed_at]
        latest = max(passed, key=lambda each: each[0])[1] if passed else self.current
        lesson = self.course.find(name) if name else latest
        if not self.progress(lesson).passed_at:
            raise SpecError(
                f"lesson {lesson.name} is not passed yet, so its solution is not shown",
                hint=f"composesim learn hint {lesson.name}",
            )
        return lesson.read(SOLUTION)

    def notebook(self) -> str:
        """Return the text of a notebook with all lessons, and the student's scripts as they are now."""
        texts = [
            replace(each.texts, script=read_text(self.script(each))) if self.script(each).is_file() else each.texts
            for each in self.course.lessons.values()
        ]
        return to_notebook(self.course.course, texts, self._state.course)

    def script(self, lesson: LessonFolder) -> Path:
        """Return the path of the student's script."""
        return self.folder / lesson.name / SCRIPT

    def rows(self) -> Iterator[tuple[LessonFolder, Progress]]:
        """Yield all lessons with their progress."""
        yield from ((lesson, self.progress(lesson)) for lesson in self.course.lessons.values())

    def _update(self, lesson: LessonFolder, progress: Progress) -> None:
        self._save(replace(self._state, lessons={**self._state.lessons, lesson.name: progress}))

    def _save(self, state: _State) -> None:
        self._state = state
        (self.folder / _STATE).parent.mkdir(parents=True, exist_ok=True)
        write_file(self.folder / _STATE, json.dumps(asdict(state), indent=2) + "\n")
