"""Print lessons: what to do, how an attempt went, and the progress of a student."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import click

from compose_sim.cli.console import MARKS, echo, print_table, print_text, text_width
from compose_sim.plugins.learn.app.attempt import Attempt
from compose_sim.plugins.learn.app.course_folder import LessonFolder
from compose_sim.plugins.learn.app.workbook import Workbook
from compose_sim.plugins.learn.core.gradebook import MARKS as STATUS_MARKS
from compose_sim.plugins.learn.core.gradebook import Grade, rows_of
from compose_sim.plugins.learn.core.outcome import Outcome, Status, score_text

PREDICT = "Your prediction (Enter to skip)"
_MARKS: dict[Status, str] = {"passed": "passed", "failed": "failed", "unjudged": "not-applicable"}
_WORDS: dict[Status, str] = {"passed": "passed", "failed": "not yet", "unjudged": "could not be judged"}


def print_lesson(workbook: Workbook, lesson: LessonFolder) -> None:
    """Print the goal of a lesson, the question, and the files to open."""
    wanted = lesson.lesson
    echo(click.style(f"{lesson.name}: {wanted.title}", bold=True))
    print_text(f"Goal: {wanted.goal}")
    if wanted.limits:
        print_text(f"Limits: {', '.join(wanted.limits)}")
    print_text(f"Predict, before you run it: {wanted.question}")
    if prediction := workbook.progress(lesson).prediction:
        print_text(f"You predicted: {prediction}")
    best = workbook.progress(lesson).best
    if pars := [score_text(name, None, par=par, best=best.get(name)) for name, par in wanted.score.items()]:
        print_text(f"Score, less is better: {', '.join(pars)}")
    echo(f"  Read {lesson.name}/page.md, then edit {_shown(workbook, lesson)}")


def print_attempt(workbook: Workbook, lesson: LessonFolder, attempt: Attempt) -> None:
    """Print what was observed in an attempt, the picture of the run, and what to do next."""
    outcome = attempt.outcome
    echo()
    print_outcome(outcome)
    if attempt.picture:
        echo()
        for line in attempt.picture:
            echo(f"  {line}".rstrip())
    echo()
    if outcome.status == "passed":
        _print_score(workbook, lesson, outcome)
        print_text(f"You were asked: {lesson.lesson.question}")
        if prediction := workbook.progress(lesson).prediction:
            verdict = {True: " That is right.", False: " That is not it.", None: ""}[lesson.lesson.agrees(prediction)]
            print_text(f"You predicted: {prediction}.{verdict}")
        print_text(f"Answer: {lesson.lesson.answer}")
    elif outcome.status == "failed":
        print_text(f"Why it matters: {lesson.lesson.why}")
    echo()
    mark, color = MARKS[_MARKS[outcome.status]]
    verdict = click.style(f"{mark} {lesson.name} {_WORDS[outcome.status]}", fg=color, bold=True)
    done = sum(1 for _, progress in workbook.rows() if progress.passed_at)
    count = len(workbook.course.lessons)
    bar = ("█" * round(20 * done / count)).ljust(20, "░")
    echo(f"{verdict}  {outcome.seconds:.1f} s · [{bar}] {done} of {count}")


def _print_score(workbook: Workbook, lesson: LessonFolder, outcome: Outcome) -> None:
    best = workbook.progress(lesson).best
    for name, par in lesson.lesson.score.items():
        value = outcome.score.get(name)
        missed = "" if value is not None else ": not measured in this run"
        print_text(f"Score: {score_text(name, value, par=par, best=best.get(name))}{missed}")


def print_outcome(outcome: Outcome) -> None:
    """Print one line for each requirement, and the evidence for those that were not met."""
    width = max(len(finding.id) for finding in outcome.findings)
    for finding in outcome.findings:
        mark, color = MARKS[_MARKS[finding.status]]
        place = f"at {finding.place}" if finding.place and finding.status != "passed" else ""
        prefix = f"  {click.style(mark, fg=color)} {finding.id:{width}}  "
        for line in [*finding.detail.splitlines(), place]:
            for part in textwrap.wrap(line, text_width() - width - 6):
                echo(f"{prefix}{part}")
                prefix = " " * (width + 6)


def print_hints(lesson: LessonFolder, hints: tuple[str, ...]) -> None:
    """Print the hints that were read so far."""
    for number, hint in enumerate(hints, 1):
        print_text(f"Hint {number} of {len(lesson.lesson.hints)}: {hint}")


def print_lessons(workbook: Workbook) -> None:
    """Print all lessons with the progress of the student."""
    rows, scores = [], []
    for lesson, progress in workbook.rows():
        mark = "✔" if progress.passed_at else "▸" if lesson == workbook.current else " "
        rows.append((mark, lesson.name, lesson.lesson.title, progress.attempts, progress.hints))
        known = ((name, par) for name, par in lesson.lesson.score.items() if name in progress.best)
        scores += [(lesson.name, score_text(name, progress.best[name], par=par)) for name, par in known]
    print_table(("", "lesson", "title", "attempts", "hints"), rows)
    if scores:
        echo()
        print_table(("lesson", "your best score; less is better"), scores)


def print_grades(grades: Sequence[Grade]) -> None:
    """Print a row for each student, with a mark for each lesson."""
    rows = rows_of(grades)
    lessons = list(dict.fromkeys(grade.lesson for grade in grades))
    counts = {student: sum(outcome.status == "passed" for outcome in row.values()) for student, row in rows.items()}
    print_table(
        ("student", *(lesson.partition("-")[0] for lesson in lessons), "passed"),
        [
            (student, *(STATUS_MARKS[row[each].status] for each in lessons), counts[student])
            for student, row in rows.items()
        ],
    )


def _shown(workbook: Workbook, lesson: LessonFolder) -> str:
    return str(workbook.script(lesson).relative_to(workbook.folder))
