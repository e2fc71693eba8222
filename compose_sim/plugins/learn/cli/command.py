"""Define `composesim learn`: graded lessons on distributed training."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from compose_sim.cli.console import MARKS as COLORED_MARKS
from compose_sim.cli.console import echo, print_text, say
from compose_sim.cli.run_lookup import FILE, FOLDER
from compose_sim.core.text import format_count
from compose_sim.engine.run_folder.safe_files import write_file
from compose_sim.errors import SpecError
from compose_sim.plugins.learn.app.attempt import attempt
from compose_sim.plugins.learn.app.author import begin_course, grade, prove, write_pages
from compose_sim.plugins.learn.app.course_folder import SOLUTION, LessonFolder, read_course, read_text
from compose_sim.plugins.learn.app.workbook import Workbook
from compose_sim.plugins.learn.cli.views import (
    PREDICT,
    print_attempt,
    print_grades,
    print_hints,
    print_lesson,
    print_lessons,
)
from compose_sim.plugins.learn.core.gradebook import FORMATS, MARKS, Grade, read_grades, to_json

_EXIT_CODES = {"passed": 0, "failed": 1, "unjudged": 3}
_HELP = """Learn distributed training in lessons: fix small scripts, which run on simulated nodes.

Without a command, watch the script of the current lesson, and run it each time it is saved.

\b
composesim learn init lessons
cd lessons && composesim learn
"""
_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
_lesson_argument = click.argument("name", required=False, metavar="[LESSON]")


@click.group("learn", invoke_without_command=True, help=_HELP)
@click.pass_context
def command(context: click.Context) -> None:
    """Watch, unless there is a command."""
    if context.invoked_subcommand is None:
        from compose_sim.plugins.learn.cli.watch import watch

        watch(Workbook.find(Path.cwd()))


@command.command("init")
@click.argument("directory", metavar="DIR", type=FOLDER)
@click.option("--course", type=_FOLDER, metavar="FOLDER", help="Use another course.")
def init(directory: Path, course: Path | None) -> None:
    """Write the lessons into DIR."""
    workbook = Workbook.begin(directory, read_course(course), shipped=course is None)
    print_text(workbook.course.course.welcome)
    echo()
    print_lesson(workbook, workbook.current)
    echo(f"\nBegin: cd {directory} && composesim learn")


@command.command("list")
def list_lessons() -> None:
    """List the lessons, and show which are passed."""
    print_lessons(Workbook.find(Path.cwd()))


@command.command("run")
@_lesson_argument
def run(name: str | None) -> None:
    """Run a lesson once (default: the current one). Exit code: 0 passed, 1 not yet, 3 could not be judged."""
    workbook, lesson = _chosen(name)
    if workbook.must_predict(lesson):
        print_text(f"Predict, before you run it: {lesson.lesson.question}")
        if sys.stdin.isatty():
            workbook.predict(lesson, click.prompt(PREDICT, default="", show_default=False))
    say(f"Running {lesson.name}: {format_count(lesson.lesson.nodes * lesson.lesson.ranks_per_node, 'rank')}…")
    result = attempt(lesson, workbook.folder)
    if result.was_interrupted:
        sys.exit(130)
    workbook.record(lesson, result.outcome)
    print_attempt(workbook, lesson, result)
    follow_up = workbook.next_lesson() if result.outcome.status == "passed" else None
    if follow_up:
        workbook.choose(follow_up)
        echo(f"Next: {follow_up.name}. A solution: composesim learn solution {lesson.name}")
    elif result.outcome.status == "passed":
        print_text(workbook.course.course.farewell)
    else:
        echo("Stuck? composesim learn hint")
    sys.exit(_EXIT_CODES[result.outcome.status])


@command.command("predict")
@_lesson_argument
@click.option("--answer", metavar="TEXT", help="Your answer. Without it, the question is printed.")
def predict(name: str | None, answer: str | None) -> None:
    """Keep your answer to the question of a lesson before its first run; `run` asks for it in a terminal."""
    workbook, lesson = _chosen(name)
    if answer is None:
        print_text(lesson.lesson.question)
        return
    if not answer.strip():
        raise SpecError("the answer is empty", hint=f"composesim learn predict {lesson.name}")
    if workbook.progress(lesson).attempts:
        raise SpecError(f"lesson {lesson.name} was run already", hint=f"composesim learn run {lesson.name}")
    workbook.predict(lesson, answer)
    echo(f"Kept. Now: composesim learn run {lesson.name}")


@command.command("hint")
@_lesson_argument
def hint(name: str | None) -> None:
    """Show the next of the three hints for a lesson. Each is more specific than the one before."""
    workbook, lesson = _chosen(name)
    print_hints(lesson, workbook.hints(lesson))


@command.command("reset")
@_lesson_argument
def reset(name: str | None) -> None:
    """Restore the script of a lesson; yours is kept as script.py.bak."""
    workbook, lesson = _chosen(name)
    echo(f"Restored {workbook.script(lesson)}; yours is {workbook.reset(lesson)}")


@command.command("solution")
@_lesson_argument
def solution(name: str | None) -> None:
    """Print a solution of a lesson that you have passed (default: the latest)."""
    echo(Workbook.find(Path.cwd()).solution(name), nl=False)


@command.command("notebook")
@click.option("--output", type=FILE, metavar="FILE", help="Write this file instead of course.ipynb among the lessons.")
def notebook(output: Path | None) -> None:
    """Write the lessons as one Jupyter notebook with your scripts, whose cells run on several ranks."""
    workbook = Workbook.find(Path.cwd())
    file = output or workbook.folder / "course.ipynb"
    if file.exists():
        other = file.with_name(f"{file.stem}-2.ipynb")
        raise SpecError(
            f"'{file}' exists, and may hold your changes", hint=f"composesim learn notebook --output {other}"
        )
    write_file(file, workbook.notebook())
    say(f"wrote {file}: {format_count(len(workbook.course.lessons), 'lesson')}")
    say(f"Open it: jupyter lab {file}")


@command.command("grade")
@click.argument("folders", nargs=-1, required=True, metavar="DIR…", type=click.Path(exists=True, path_type=Path))
@click.option("--course", type=_FOLDER, metavar="FOLDER", help="Grade this course instead of the built-in one.")
@click.option("--lesson", "only", multiple=True, metavar="LESSON", help="Grade only this lesson.")
@click.option(
    "--trust",
    is_flag=True,
    help="Run scripts as the current user, without containers. They can do anything that you can.",
)
@click.option(
    "--jobs", type=click.IntRange(1), default=1, show_default=True, help="Run so many scripts at the same time."
)
@click.option(
    "--resume", type=FILE, help="Keep grades in this JSON file while grading, and go on there after an interruption."
)
@click.option("--csv", type=FILE, help="Write a CSV file with one row per student and one column per lesson.")
@click.option("--json", type=FILE, help="Write all findings as JSON.")
@click.option("--html", type=FILE, help="Write a page with the table and the evidence.")
@click.option("--junit", type=FILE, help="Write JUnit XML with one test suite per student.")
def grade_class(
    folders: tuple[Path, ...],
    course: Path | None,
    only: tuple[str, ...],
    trust: bool,
    jobs: int,
    resume: Path | None,
    **files: Path | None,
) -> None:
    """Grade the folders of a class, which `learn init` has made. Scripts run in containers that reach only one another.

    Files among DIR… are skipped, so that a pattern may match them.

    Exit code: 0 if everything is passed, 1 if something is not, 3 if something could not be judged.
    """
    lessons = read_course(course)
    chosen = [lessons.find(name) for name in only] or [*lessons.lessons.values()]
    grades: list[Grade] = []
    students = [each for each in folders if each.is_dir()]
    known = _known_grades(resume)
    for each in grade(students, chosen, engine="local" if trust else "docker", jobs=jobs, known=known):
        grades.append(each)
        if resume:
            write_file(resume, to_json([*{(each.student, each.lesson): each for each in (*known, *grades)}.values()]))
        seconds = f"{each.outcome.seconds:.1f} s"
        say(f"{MARKS[each.outcome.status]} {each.student} {each.lesson} {seconds} {each.evidence}".rstrip())
    for name, path in files.items():
        if path:
            write_file(path, FORMATS[name](grades))
    print_grades(grades)
    found = {each.outcome.status for each in grades}
    sys.exit(_EXIT_CODES["unjudged" if "unjudged" in found else "failed" if "failed" in found else "passed"])


def _known_grades(file: Path | None) -> list[Grade]:
    if file is None or not file.exists():
        return []
    try:
        return read_grades(read_text(file))
    except ValueError as error:
        raise SpecError(f"'{file}' cannot be resumed: {error}", hint="composesim learn grade --help") from None


@command.group("dev")
def dev() -> None:
    """Write your own lessons (see docs/plugins/learn/course.md)."""


@dev.command("new")
@click.argument("folder", metavar="FOLDER", type=FOLDER)
def dev_new(folder: Path) -> None:
    """Create a course in FOLDER, with an example lesson."""
    files = begin_course(folder)
    say(f"wrote {folder}: {len(files)} files, with the lesson 01-first")
    say(f"Prove it: composesim learn dev check {folder}")


@dev.command("check")
@click.argument("folder", required=False, metavar="[FOLDER]", type=_FOLDER)
@click.option("--lesson", "only", multiple=True, metavar="LESSON", help="Check only this lesson.")
def dev_check(folder: Path | None, only: tuple[str, ...]) -> None:
    """Verify that a lesson's solution and the scripts in accept/ pass, and that its script and those in reject/ fail.

    FOLDER is a course (default: the built-in one). Exit code: 0 if everything holds, else 1.
    """
    course = read_course(folder)
    problems = 0
    for lesson in [course.find(name) for name in only] or course.lessons.values():
        proof = prove(lesson)
        problems += len(proof.problems)
        mark, color = COLORED_MARKS["failed" if proof.problems else "passed"]
        seconds = proof.outcomes[SOLUTION].seconds
        passed = sum(1 for each in proof.outcomes.values() if each.status == "passed")
        failed = len(proof.outcomes) - passed
        seen = f"{passed} pass, {failed} fail, the solution takes {seconds:.1f} s, the script fails for {lesson.lesson.fails}"
        echo(f"{click.style(mark, fg=color)} {lesson.name}  {seen if not proof.problems else ''}".rstrip())
        for problem in proof.problems:
            echo(f"    {problem}")
    sys.exit(min(problems, 1))


@dev.command("pages")
@click.argument("folder", metavar="FOLDER", type=FOLDER)
@click.option("--course", type=_FOLDER, metavar="FOLDER", help="Use another course.")
def dev_pages(folder: Path, course: Path | None) -> None:
    """Write the pages of a site into FOLDER: one for each lesson and each term, for MkDocs, and a notebook."""
    count = write_pages(read_course(course), folder)
    say(f"wrote {folder}/learn and {folder}/terms: {format_count(count, 'page')}")


def _chosen(name: str | None) -> tuple[Workbook, LessonFolder]:
    """Return the workbook here, and the lesson of this name, which becomes the current one."""
    workbook = Workbook.find(Path.cwd())
    if name is None:
        return workbook, workbook.current
    lesson = workbook.course.find(name)
    workbook.choose(lesson)
    return workbook, lesson
