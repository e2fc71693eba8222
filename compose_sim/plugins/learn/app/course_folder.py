"""Read a course: a folder with `course.yaml` and a folder for each lesson."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from compose_sim.core.text import did_you_mean
from compose_sim.engine.project_files import read_settings
from compose_sim.errors import SpecError
from compose_sim.plugins.learn.core.lesson import Course, Lesson, parse_course, parse_lesson
from compose_sim.plugins.learn.core.notebook import LessonTexts

TEMPLATES = Path(__file__).resolve().parents[1] / "templates"
SCRIPT, SOLUTION, PAGE = "script.py", "solution.py", "page.md"
_FILES = ("lesson.yaml", SCRIPT, SOLUTION, PAGE)
_PRIVATE = ("lesson.yaml", SOLUTION)  # what a student does not get
ACCEPT, REJECT = "accept", "reject"  # folders of a lesson: other right solutions, and wrong or lazy ones


@dataclass(frozen=True, slots=True, kw_only=True)
class LessonFolder:
    """A lesson, and the folder of its files."""

    name: str  # 03-set-epoch
    path: Path
    lesson: Lesson

    def read(self, file: str) -> str:
        """Return the text of a file of the lesson."""
        return read_text(self.path / file)

    @property
    def delivered(self) -> dict[str, str]:
        """The texts of the files that a student gets, by name: with modules that several lessons share, if the program imports them."""
        names = sorted(each.name for each in self.path.iterdir() if each.is_file() and each.name not in _PRIVATE)
        program = self.read(self.lesson.program)
        shared = [each for each in sorted(self.path.parent.glob("*.py")) if f"from {each.stem} import " in program]
        return {name: self.read(name) for name in names} | {each.name: read_text(each) for each in shared}

    def scripts(self, kind: str) -> dict[str, str]:
        """Return the texts of the scripts in a folder of the lesson, `accept` or `reject`, by path within the lesson."""
        found = sorted((self.path / kind).glob("*.py"))
        return {f"{kind}/{each.name}": read_text(each) for each in found}

    @property
    def texts(self) -> LessonTexts:
        """What a student reads and edits first."""
        return LessonTexts(name=self.name, lesson=self.lesson, page=self.read(PAGE), script=self.read(SCRIPT))

    @property
    def own_files(self) -> dict[str, str]:
        """The files of the course that an attempt uses: all but the script, without the student's changes."""
        return {name: text for name, text in self.delivered.items() if name != SCRIPT}


@dataclass(frozen=True, slots=True, kw_only=True)
class CourseFolder:
    """A course and its lessons, in order of their names."""

    path: Path
    course: Course
    lessons: Mapping[str, LessonFolder]

    def find(self, name: str) -> LessonFolder:
        """Return a lesson by name, by number or by a part of its name; raise SpecError if there is none, or several."""
        if name in self.lessons:
            return self.lessons[name]
        number = name.zfill(2)
        found = [each for each in self.lessons if each.partition("-")[0] == number or (len(name) > 2 and name in each)]
        if len(found) == 1:
            return self.lessons[found[0]]
        several = f": it could be {', '.join(found)}" if found else did_you_mean(name, self.lessons)
        raise SpecError(f"there is no lesson '{name}'{several}", hint="composesim learn list")


def read_course(path: Path | None = None) -> CourseFolder:
    """Return the course in a folder, or the one that ships; raise SpecError with file and line if it is not a course."""
    folder = path or TEMPLATES / "course"
    if not (folder / "course.yaml").is_file():
        raise SpecError(f"'{folder}' is not a course: it has no course.yaml", hint=f"composesim learn dev new {folder}")
    course = parse_course(read_text(folder / "course.yaml"), str(folder / "course.yaml"))
    numbered = (each for each in (folder / "lessons").glob("*") if each.is_dir() and each.name[0].isdecimal())
    folders = sorted(each for each in numbered if not _is_bytecode(each))
    if not folders:
        raise SpecError(f"the course '{folder}' has no lessons", hint=f"mkdir -p {folder}/lessons/01-name")
    return CourseFolder(path=folder, course=course, lessons={each.name: _read_lesson(each) for each in folders})


def _is_bytecode(folder: Path) -> bool:
    """Return whether git has renamed or deleted a lesson, and only its bytecode is left."""
    files = [each for each in folder.rglob("*") if each.is_file()]
    return bool(files) and all(each.suffix == ".pyc" for each in files)


def _read_lesson(folder: Path) -> LessonFolder:
    missing = [name for name in _FILES if not (folder / name).is_file()]
    if missing:
        raise SpecError(f"lesson '{folder.name}' has no {missing[0]}", hint=f"touch {folder / missing[0]}")
    lesson = parse_lesson(read_text(folder / "lesson.yaml"), str(folder / "lesson.yaml"))
    if not (folder / lesson.program).is_file():
        raise SpecError(f"lesson '{folder.name}' has no {lesson.program}, its program", hint=f"ls {folder}")
    return LessonFolder(name=folder.name, path=folder, lesson=lesson)


def read_text(path: Path) -> str:
    """Return the text of a file; raise SpecError if it cannot be read."""
    try:
        return read_settings(path, path.parent)
    except OSError as error:
        raise SpecError(f"'{path}' cannot be read: {error}", hint=f"ls -l {path}") from None
