"""
Watch the script of the current lesson, run it at each save, and obey single keys.

The time and size of one file are polled: that costs nothing, needs no library, and also works on network file systems and in
containers, which send no notifications.
"""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from pathlib import Path
from typing import Self

import click

from compose_sim.cli.console import echo, print_text
from compose_sim.errors import ComposesimError, SpecError
from compose_sim.plugins.learn.app.attempt import Attempt, attempt
from compose_sim.plugins.learn.app.workbook import Workbook
from compose_sim.plugins.learn.cli.views import PREDICT, print_attempt, print_hints, print_lesson, print_lessons

_POLL_S = 0.2
_KEYS = "n next · h hint · l list · r run · q quit"


def watch(workbook: Workbook) -> None:
    """Run the current lesson now and at each save until the student quits; raise SpecError without a terminal."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise SpecError("watching needs a terminal", hint="composesim learn run")
    with _Keys() as keys:
        _Watch(workbook, keys).follow()


class _Watch:
    """What is shown, and the version of the script that was run last."""

    def __init__(self, workbook: Workbook, keys: _Keys) -> None:
        self.workbook = workbook
        self.keys = keys
        self.has_passed = False

    def follow(self) -> None:
        """Run, then wait for a save or a key, until q."""
        self._begin()
        seen = _version(self._script)
        while (key := _key()) != "q":
            now = _version(self._script)
            if key == "r" or (now != seen and now is not None):
                self._run()
            elif key == "n":
                self._go_on()
            elif key == "h":
                print_hints(self.workbook.current, self.workbook.hints(self.workbook.current))
            elif key == "l":
                echo()
                print_lessons(self.workbook)
            else:
                continue
            seen = now if key is None or key == "r" else _version(self._script)
            self._print_keys()

    @property
    def _script(self) -> Path:
        return self.workbook.script(self.workbook.current)

    def _begin(self) -> None:
        """Show the current lesson without running it: the student is to predict first."""
        self.has_passed = False
        click.clear()
        print_lesson(self.workbook, self.workbook.current)
        echo("  It runs when you save the script, or when you press r.")
        self._print_keys()

    def _run(self) -> None:
        lesson = self.workbook.current
        if self.workbook.must_predict(lesson):
            self.workbook.predict(lesson, self.keys.ask(f"\n  {PREDICT}"))
        click.clear()
        print_lesson(self.workbook, lesson)
        echo("  Running…")
        result = self._attempt()
        if result is None or result.was_interrupted:
            return
        self.workbook.record(lesson, result.outcome)
        print_attempt(self.workbook, lesson, result)
        self.has_passed = result.outcome.status == "passed"
        if self.has_passed:
            echo(f"  Press n to continue. A solution: composesim learn solution {lesson.name}")

    def _attempt(self) -> Attempt | None:
        """Return the attempt; None if this machine could not run it, which is printed."""
        try:
            return attempt(self.workbook.current, self.workbook.folder)
        except ComposesimError as error:
            echo(f"  This could not be run: {error.message}\n  Try: {error.hint}")
            return None

    def _go_on(self) -> None:
        following = self.workbook.next_lesson()
        if following is None:
            print_text(self.workbook.course.course.farewell)
            return
        self.workbook.choose(following)
        self._begin()

    def _print_keys(self) -> None:
        """Print the keys; `n` is what to press once a lesson is passed."""
        shown = _KEYS.replace("n next", click.style("n next", bold=True)) if self.has_passed else _KEYS
        echo(f"\n  {shown}")


def _version(script: Path) -> tuple[int, int] | None:
    """Return what changes when a script is saved; None while an editor replaces it."""
    try:
        status = script.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def _key() -> str | None:
    """Return the key that is pressed within the time of a poll; `q` if the terminal is gone."""
    ready, _, _ = select.select([sys.stdin], [], [], _POLL_S)
    return (os.read(sys.stdin.fileno(), 1).decode("ascii", "replace").lower() or "q") if ready else None


class _Keys:
    """A terminal that passes on each key at once, except while it asks for a line; Ctrl-C still interrupts."""

    def __enter__(self) -> Self:
        self._before = termios.tcgetattr(sys.stdin)
        tty.setcbreak(sys.stdin)
        return self

    def __exit__(self, *_: object) -> None:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._before)

    def ask(self, question: str) -> str:
        """Return the line that the user types."""
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._before)
        try:
            return str(click.prompt(question, default="", show_default=False))
        finally:
            tty.setcbreak(sys.stdin)
