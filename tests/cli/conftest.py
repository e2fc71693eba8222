"""Run the real command in a separate folder, with runs that need no torch: bare processes on the local engine."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.builders import PATIENCE_S
from tests.report_schema import validate_reports_in

COMMAND = [sys.executable, "-m", "compose_sim"]
# Bare processes: nothing imports torch, so a run takes a second.
UP = ("up", "--engine", "local", "--launcher", "env")
DONE = f"done-{secrets.token_hex(2)}"  # names of runs are known on the whole machine, where other tests run too


@dataclass(frozen=True)
class Project:
    """A folder to run the command in."""

    folder: Path

    def write(self, name: str, text: str) -> str:
        """Write a file of the project."""
        (self.folder / name).write_text(text)
        return name

    def run(
        self, *argv: str, stdin: str = "", timeout: float = PATIENCE_S, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run the command to the end."""
        return subprocess.run(
            [*COMMAND, *argv], cwd=self.folder, input=stdin, capture_output=True, text=True, timeout=timeout, env=env
        )

    def start(self, *argv: str) -> subprocess.Popen[str]:
        """Start the command."""
        pipe = subprocess.PIPE
        return subprocess.Popen([*COMMAND, *argv], cwd=self.folder, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def run_finished(folder: Path, script: str, *options: str) -> Project:
    """A project with one finished run, DONE."""
    project = Project(folder)
    project.write("train.py", script)
    ended = project.run(*UP, "--name", DONE, *options, "train.py")
    assert (folder / ".composesim" / "runs" / DONE / "report.json").is_file(), ended.stderr
    validate_reports_in(folder)
    return project


# Each rank prints a line, then waits for a number from the FIFO and exits with that status.
WAITING = """
import os, sys
rank = os.environ["RANK"]
print("begun", rank, flush=True)
with open("word." + rank) as file:
    word = file.read()
print("told", word, flush=True)
sys.exit(int(word))
"""


@dataclass(frozen=True)
class Live:
    """Start a run in the background, named after the project folder, with two ranks that wait for a number."""

    project: Project
    run: str

    @property
    def folder(self) -> Path:
        """Return the run's folder."""
        return self.project.folder / ".composesim" / "runs" / self.run

    def tell(self, rank: int, word: str) -> None:
        """Let a rank exit with that status; returns when it has started and read the number."""
        (self.project.folder / f"word.{rank}").write_text(word)


@pytest.fixture
def live(project: Project) -> Iterator[Live]:
    """A run that the test may end."""
    yield from _live_in(project)


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A run that no test of a module changes."""
    yield from _live_in(Project(tmp_path_factory.mktemp("waiting")))


def _live_in(project: Project) -> Iterator[Live]:
    """Remove everything of the run when the tests end, however they end."""
    for rank in (0, 1):
        os.mkfifo(project.folder / f"word.{rank}")
    project.write("train.py", WAITING)
    run = f"live-{secrets.token_hex(3)}"  # others may be using the engines of this machine
    started = project.run(*UP, "--detach", "--name", run, "train.py")
    assert started.stdout == f"{run}\n", started.stderr
    yield Live(project, run)
    project.run("down", "--run", run)
