"""Define `composesim learn`: graded lessons on distributed training."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from compose_sim.app.learn.attempt import attempt
from compose_sim.app.learn.course_folder import LessonFolder, read_course
from compose_sim.app.learn.workbook import Workbook
from compose_sim.cli.console import echo, say
from compose_sim.cli.views.lessons import print_attempt, print_hints, print_lesson, print_lessons

_EXIT_CODES = {"passed": 0, "failed": 1, "unjudged": 3}
_HELP = """Learn distributed training in lessons: mend small scripts, which run here on simulated nodes.

Without a command, watch the current lesson of this folder and run it at each save.

\b
composesim learn init lessons
cd lessons && composesim learn
"""
_lesson_argument = click.argument("name", required=False, metavar="[LESSON]")


@click.group("learn", invoke_without_command=True, help=_HELP)
@click.pass_context
def command(context: click.Context) -> None:
    """Watch, unless there is a command."""
    if context.invoked_subcommand is None:
        from compose_sim.cli.lesson_watch import watch

        watch(Workbook.find(Path.cwd()))


@command.command("init")
@click.argument("directory", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--course",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Take the lessons of another course.",
)
def init(directory: Path, course: Path | None) -> None:
    """Write the lessons into DIR."""
    workbook = Workbook.begin(directory, read_course(course), shipped=course is None)
    echo(workbook.course.course.welcome)
    echo()
    print_lesson(workbook, workbook.current)
    echo(f"\nBegin: cd {directory} && composesim learn")


@command.command("list")
def list_lessons() -> None:
    """List the lessons, and what is passed."""
    print_lessons(Workbook.find(Path.cwd()))


@command.command("run")
@_lesson_argument
def run(name: str | None) -> None:
    """Run a lesson once (default: the current one). Exit code: 0 passed, 1 not yet, 3 could not be judged."""
    workbook, lesson = _chosen(name)
    say(f"Running {lesson.name}: {lesson.lesson.nodes * lesson.lesson.ranks_per_node} ranks…")
    result = attempt(lesson, workbook.folder)
    if result.was_interrupted:
        sys.exit(130)
    workbook.record(lesson, result.outcome)
    print_attempt(workbook, lesson, result)
    follow_up = workbook.next_lesson() if result.outcome.status == "passed" else None
    if follow_up:
        workbook.choose(follow_up)
        echo(f"Next: {follow_up.name}. One good solution: composesim learn solution {lesson.name}")
    elif result.outcome.status == "passed":
        echo(workbook.course.course.farewell)
    else:
        echo("Stuck? composesim learn hint")
    sys.exit(_EXIT_CODES[result.outcome.status])


@command.command("hint")
@_lesson_argument
def hint(name: str | None) -> None:
    """Show the next hint of a lesson; each of the three says more than the one before."""
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
    """Print one good solution of a lesson that you have passed (default: the latest)."""
    workbook = Workbook.find(Path.cwd())
    echo(workbook.solution(workbook.course.find(name) if name else workbook.latest_passed()), nl=False)


def _chosen(name: str | None) -> tuple[Workbook, LessonFolder]:
    """Return the workbook here, and the lesson of this name, which becomes the current one."""
    workbook = Workbook.find(Path.cwd())
    if name is None:
        return workbook, workbook.current
    lesson = workbook.course.find(name)
    workbook.choose(lesson)
    return workbook, lesson
