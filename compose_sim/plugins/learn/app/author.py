"""Help teachers: start a course, prove that its solutions pass and its scripts fail as they say, and grade a class."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from math import isclose
from multiprocessing import get_context
from pathlib import Path

from compose_sim import assets
from compose_sim.core.glossary import parse_glossary
from compose_sim.engine.project_owner import check_project
from compose_sim.engine.registry import make_engine, shared
from compose_sim.engine.run_folder.safe_files import SafeFolder, write_file
from compose_sim.errors import ComposesimError, SpecError
from compose_sim.plugins.learn.app.attempt import Attempt, LessonEngine, attempt
from compose_sim.plugins.learn.app.course_folder import (
    ACCEPT,
    PAGE,
    REJECT,
    SCRIPT,
    SOLUTION,
    TEMPLATES,
    CourseFolder,
    LessonFolder,
    read_course,
    read_text,
)
from compose_sim.plugins.learn.app.workbook import Progress, Workbook
from compose_sim.plugins.learn.core.gradebook import Grade
from compose_sim.plugins.learn.core.notebook import to_notebook
from compose_sim.plugins.learn.core.outcome import Finding, Outcome, Status, conclude, score_text
from compose_sim.plugins.learn.core.pages import pages_of

MAX_WORDS = 400  # of a page
_SCHEMA = "# yaml-language-server: $schema={}\n"  # for editors


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What a lesson is worth: the outcomes and pictures of its scripts by file, and what is wrong with it."""

    lesson: str
    outcomes: Mapping[str, Outcome]
    pictures: Mapping[str, tuple[str, ...]]
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
    """
    Run every script of a lesson, and return what is wrong with the lesson.

    The solution and the scripts in `accept/` must pass, those in `reject/` must fail, and the delivered one for the reason it names.
    The solution must reach par in each number of the score, and not less.
    """
    right = {SOLUTION: lesson.read(SOLUTION), **lesson.scripts(ACCEPT)}
    wrong = {SCRIPT: lesson.read(SCRIPT), **lesson.scripts(REJECT)}
    outcomes, pictures, problems = {}, {}, []
    for name, tried in _attempts(lesson, {**right, **wrong}, engine):
        outcomes[name] = outcome = tried.outcome
        pictures[name] = tried.picture
        wanted = "passed" if name in right else "failed"
        reason = outcome.reason
        if outcome.status != wanted:
            why = f": {reason.id}: {reason.detail}" if reason else ""
            problems.append(f"{name} is {outcome.status}; it must be {wanted}{why}")
        elif name == SCRIPT and reason and reason.id != lesson.lesson.fails:
            problems.append(f"{SCRIPT} fails for '{reason.id}', not for '{lesson.lesson.fails}': {reason.detail}")
    problems += _wrong_pars(lesson, outcomes[SOLUTION])
    words = len(lesson.read(PAGE).split())
    if words > MAX_WORDS:
        problems.append(f"{PAGE} has {words} words; at most {MAX_WORDS}")
    return Proof(lesson=lesson.name, outcomes=outcomes, pictures=pictures, problems=tuple(problems))


def _wrong_pars(lesson: LessonFolder, solution: Outcome) -> Iterator[str]:
    """Yield what is wrong with the lesson's score, if the solution has passed."""
    for name, par in lesson.lesson.score.items() if solution.status == "passed" else ():
        value = solution.score.get(name)
        if value is None:
            yield f"score: {lesson.lesson.program} did not report '{name}' with {SOLUTION}"
        elif not isclose(value, par, rel_tol=1e-6):
            yield f"score: {SOLUTION} reaches {score_text(name, value, par=par)}; par must be what it reaches"


def _attempts(lesson: LessonFolder, scripts: Mapping[str, str], engine: LessonEngine) -> Iterator[tuple[str, Attempt]]:
    """Yield the attempt with each script. They are all the author's, so they may share a Python that has imported torch."""
    with ExitStack() as stages, shared(make_engine(engine)) as kept:
        for name, text in scripts.items():
            project = stages.enter_context(staged(lesson, text))  # that Python imports from the folder of its first run
            yield name, attempt(lesson, project, engine=engine, kept=kept)


def begin_course(folder: Path) -> list[Path]:
    """Write a new course with one lesson that works, and return the files; raise SpecError if the folder has one."""
    check_project(folder)
    if (folder / "course.yaml").exists():
        raise SpecError(f"'{folder}' already holds a course", hint=f"composesim learn dev check {folder}")
    example = next(iter(read_course().lessons.values()))
    texts = {"course.yaml": "title: A new course\nwelcome: What the student reads first.\nfarewell: Well done.\n"}
    own = {each.name: read_text(each) for each in sorted(example.path.iterdir()) if each.is_file()}
    own |= dict(next(iter(example.scripts(kind).items())) for kind in (ACCEPT, REJECT))  # one of each as an example
    texts |= {f"lessons/01-first/{name}": text for name, text in own.items()}
    shared = sorted(each for each in example.path.parent.glob("*.py") if each.name in example.own_files)
    texts |= {f"lessons/{each.name}": read_text(each) for each in shared}
    texts |= {name: read_text(TEMPLATES / name) for name in ("course.schema.json", "lesson.schema.json")}
    texts["course.yaml"] = _SCHEMA.format("course.schema.json") + texts["course.yaml"]
    texts["lessons/01-first/lesson.yaml"] = (
        _SCHEMA.format("../../lesson.schema.json") + texts["lessons/01-first/lesson.yaml"]
    )
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_file(folder / name, text)
    return [folder / name for name in texts]


def write_pages(course: CourseFolder, folder: Path) -> int:
    """Write the pages of a site, and the notebook, into a folder; return the number of pages. What is there is replaced."""
    docs, texts = assets.root() / "docs", [each.texts for each in course.lessons.values()]
    topics = parse_glossary(read_text(docs / "glossary.md"))
    explained = {each.page: read_text(docs / each.page) for each in topics.values() if each.page}
    pages = pages_of(course.course, texts, topics, explained)
    shipped = course.path == TEMPLATES / "course"
    notebook = to_notebook(course.course, texts, "" if shipped else str(course.path.resolve()))
    for name, text in {**pages, "learn/course.ipynb": notebook}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_file(folder / name, text)
    return len(pages)


_MAX_BYTES = 1 << 20  # of a script
_TIMES, _LEAST_S = 3.0, 20.0  # how much longer than the solution a script may take, and what every script may


def grade(
    folders: Sequence[Path],
    lessons: Sequence[LessonFolder],
    *,
    engine: LessonEngine,
    jobs: int = 1,
    known: Sequence[Grade] = (),
) -> Iterator[Grade]:
    """
    Yield a grade for each student and lesson; a student is a folder as `learn init` makes it.

    A script runs in a temporary project without the files of others, and `jobs` of them at the same time. Grades that are known are
    taken over if the script is still the same. An attempt ends after three times the time of the lesson's solution, which runs first.
    Raises KeyboardInterrupt if the user interrupts an attempt.
    """
    names = [folder.resolve().name for folder in folders]
    if len(set(names)) < len(names):
        names = [str(folder) for folder in folders]
    for folder in folders:
        check_project(folder, *(folder / lesson.name for lesson in lessons))
        if not folder.is_dir():
            raise SpecError(f"'{folder}' is not the folder of a student", hint=f"ls {folder.parent}")
    before = {(each.student, each.lesson, each.script): each for each in known if each.outcome.status != "unjudged"}
    for lesson in lessons:
        handed_in = [(name, folder, _hash(folder, lesson)) for folder, name in zip(folders, names, strict=True)]
        open_ones = [each for each in handed_in if (each[0], lesson.name, each[2]) not in before]
        limited = _limited(lesson, engine) if any(script for _, _, script in open_ones) else lesson
        yield from (
            before[name, lesson.name, script] for name, _, script in handed_in if (name, lesson.name, script) in before
        )
        with _mapping(jobs) as run:
            outcomes = run(partial(_outcome, lesson=limited, engine=engine), (folder for _, folder, _ in open_ones))
            for (name, folder, script), outcome in zip(open_ones, outcomes, strict=True):
                yield _graded(name, folder, lesson, script, outcome)


@contextmanager
def _mapping(jobs: int) -> Iterator[Callable[..., Iterator[Outcome]]]:
    """Yield what calls a function for each value, in order of the values: `jobs` of them at the same time."""
    if jobs == 1:
        yield map
    else:
        with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:  # runs handle signals: no threads
            yield pool.map


def _graded(student: str, folder: Path, lesson: LessonFolder, script: str, outcome: Outcome) -> Grade:
    told = Workbook.handed_in(folder).get(lesson.name, Progress())
    prediction = told.prediction or ""
    return Grade(
        student=student,
        lesson=lesson.name,
        outcome=outcome,
        attempts=told.attempts,
        hints=told.hints,
        prediction=prediction,
        script=script,
        agrees=lesson.lesson.agrees(prediction),
        par=lesson.lesson.score,
    )


def _hash(folder: Path, lesson: LessonFolder) -> str:
    """Return a hash of what was handed in; "" if it cannot be read."""
    try:
        return sha256(SafeFolder(folder / lesson.name).read_bytes(SCRIPT, size=_MAX_BYTES + 1)).hexdigest()
    except (OSError, ComposesimError):
        return ""


def _limited(lesson: LessonFolder, engine: LessonEngine) -> LessonFolder:
    """Return the lesson with the time limit that its solution allows here: an endless loop costs a class less."""
    started = time.monotonic()
    try:
        with staged(lesson, lesson.read(SOLUTION)) as project:
            result = attempt(lesson, project, engine=engine)
    except ComposesimError:  # each student's attempt will say so
        return lesson
    if result.was_interrupted:
        raise KeyboardInterrupt
    if result.outcome.status != "passed":  # the machine is at fault, or too slow: let the lesson say how long
        return lesson
    limit = max(_LEAST_S, _TIMES * (time.monotonic() - started))
    timeout = min(lesson.lesson.timeout, limit) if lesson.lesson.timeout else limit
    return replace(lesson, lesson=lesson.lesson.model_copy(update={"timeout": timeout}))


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
