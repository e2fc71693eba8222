"""`composesim learn` in a terminal: it runs the lesson at each save, and obeys single keys."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from compose_sim.plugins.learn.app.workbook import Workbook
from tests.builders import PATIENCE_S
from tests.cli.conftest import COMMAND
from tests.plugins.learn.app.test_author import a_course

_COLORS = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A command that runs in a terminal."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._seen = b""

    def press(self, key: str) -> None:
        os.write(self._descriptor, key.encode())

    def wait_for(self, words: str) -> str:
        """Return what was printed up to these words, which the next call no longer sees."""
        deadline = time.monotonic() + PATIENCE_S
        while words.encode() not in self._seen:
            assert time.monotonic() < deadline, self._seen.decode()
            if select.select([self._descriptor], [], [], 1.0)[0]:
                self._seen = _COLORS.sub(b"", self._seen + os.read(self._descriptor, 65536))
        before, _, self._seen = self._seen.partition(words.encode())
        return before.decode()


@contextmanager
def watching(folder: Path) -> Iterator[tuple[Terminal, subprocess.Popen[bytes]]]:
    ours, theirs = pty.openpty()
    process = subprocess.Popen([*COMMAND, "learn"], cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    try:
        yield Terminal(ours), process
    finally:
        process.kill()
        process.wait()
        os.close(ours)


@pytest.mark.train
def test_a_save_runs_the_lesson_and_keys_are_obeyed(tmp_path: Path) -> None:
    course = a_course(tmp_path / "course", score="{size: 2}")
    workbook = Workbook.begin(tmp_path / "lessons", course, shipped=False)
    lesson = workbook.current
    with watching(workbook.folder) as (terminal, process):
        assert "size (par 2)" in terminal.wait_for("q quit")
        terminal.press("h")
        terminal.wait_for("Hint 1 of 3: a")
        terminal.press("l")
        terminal.wait_for("01-size")
        terminal.press("r")
        terminal.wait_for("Your prediction")
        terminal.press("seven\n")
        assert "✘ size  1;" in terminal.wait_for("01-size not yet")
        workbook.script(lesson).write_text(lesson.read("solution.py"))
        shown = terminal.wait_for("01-size passed")
        assert "You predicted: seven" in shown
        assert "size 2 (par 2, your best 2)" in shown
        terminal.press("l")
        terminal.wait_for("size 2 (par 2)\r\n")
        terminal.press("n")
        terminal.wait_for("  F\r\n")  # the farewell: there is no other lesson
        terminal.press("q")
        assert process.wait(PATIENCE_S) == 0

    progress = Workbook.find(workbook.folder).progress(lesson)
    assert (progress.attempts, progress.hints, progress.prediction) == (2, 1, "seven")
    assert progress.passed_at is not None
    assert progress.best == {"size": 2}


def test_without_a_terminal_it_names_the_command_that_needs_none(tmp_path: Path) -> None:
    Workbook.begin(tmp_path, a_course(tmp_path / "course"), shipped=False)

    ended = subprocess.run([*COMMAND, "learn"], cwd=tmp_path, capture_output=True, text=True, stdin=subprocess.DEVNULL)

    assert ended.returncode == 2
    assert "Try: composesim learn run" in ended.stderr
