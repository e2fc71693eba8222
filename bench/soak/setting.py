"""Provide what every row of the soak needs: a folder to run in, the command, a seed, and the results of a play."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).parent / "scripts"
GRACE_S = 120.0  # for a script to end after the file `enough` was written
COMMAND = [sys.executable, "-m", "compose_sim"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table: what was required and what was measured."""

    what: str
    wanted: str
    seen: str
    reached: bool
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Soak:
    """One soak: the folder, the duration, how often runs are repeated, and the seed."""

    folder: Path
    minutes: float
    times: int
    seed: int
    engine: str
    environment: dict[str, str]
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))  # of runs; several threads may ask
    # Of the row that is being measured, from an earlier soak of this commit.
    progress: dict[str, Any] = field(default_factory=dict)
    save: Callable[[], None] = lambda: None  # keeps `progress`, so that the next soak can continue
    deadline: float = float("inf")  # on the monotonic clock: a row that can be continued begins nothing after it

    @property
    def prefix(self) -> str:
        """The prefix of all names of this soak."""
        return f"soak-{os.getpid()}"

    def new_name(self, word: str = "") -> str:
        """Return a run name that is unique on this engine."""
        return "-".join(part for part in (self.prefix, str(next(self.numbers)), word) if part)

    def play(
        self,
        name: str,
        scenario: str,
        *words: str,
        seed: int = 0,
        patience_s: float = 1200,
        enough: Callable[[list[dict[str, Any]]], bool] | None = None,
    ) -> dict[str, Any]:
        """
        Play a scenario, given as text or by the name of a shipped one; return the report with `events`, those of composesim itself.

        When `enough` returns True for these events, or time is up, the file `enough` is written into the shared folder of the script.
        """
        path = scenario
        if "\n" in scenario:
            path = f"{name}.yaml"
            (self.folder / path).write_text(scenario)
        argv = [*COMMAND, "play", path, "--name", name, "--engine", self.engine, "--seed", str(seed), "--json", *words]
        deadline = time.monotonic() + patience_s
        with (self.folder / f"{name}.json").open("w") as out, (self.folder / f"{name}.err").open("w") as err:
            process = subprocess.Popen(argv, cwd=self.folder, env=self.environment, stdout=out, stderr=err)
            while process.poll() is None:
                late = time.monotonic() - deadline
                if late > 0 or (enough and enough(self.events(name))):
                    with suppress(FileNotFoundError):  # the run has not begun
                        (self.run_folder(name) / "shared" / "enough").touch()
                if late > GRACE_S:
                    process.send_signal(signal.SIGTERM)
                    process.wait()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(1.0)
        try:
            report: dict[str, Any] = json.loads((self.folder / f"{name}.json").read_text())
        except ValueError:
            words_of_it = (self.folder / f"{name}.err").read_text()[-500:]
            report = {"error": {"message": words_of_it or f"exit code {process.returncode}"}}
        return {**report, "events": self.events(name)}

    def start(self, name: str, *words: str) -> subprocess.Popen[str]:
        """Start `composesim up`, with the output in files."""
        with (self.folder / f"{name}.out").open("w") as out, (self.folder / f"{name}.err").open("w") as err:
            argv = [*COMMAND, "up", "--name", name, "--engine", self.engine, *words]
            return subprocess.Popen(
                argv, cwd=self.folder, env=self.environment, stdout=out, stderr=err, text=True, stdin=subprocess.DEVNULL
            )

    def run_folder(self, name: str) -> Path:
        """Return the folder of a run."""
        return self.folder / ".composesim" / "runs" / name

    def events(self, name: str, of: str = "composesim") -> list[dict[str, Any]]:
        """Return the events that a writer added to a run, in order; empty if there are none yet."""
        try:
            folder = "journal" if of == "composesim" else "events"
            lines = next(self.run_folder(name).glob(f"**/{folder}/{of}.jsonl")).read_text().splitlines()
        except StopIteration:
            return []
        return [json.loads(line) for line in lines if line.endswith("}")]


@contextmanager
def prepared(*, minutes: float, times: int, seed: int, engine: str) -> Iterator[Soak]:
    """Yield a soak with a folder that is deleted at the end."""
    # Not in /tmp, which is private to every node.
    with tempfile.TemporaryDirectory(prefix="composesim-soak.", dir="/var/tmp") as folder:
        path = Path(folder)
        path.chmod(0o755)
        shutil.copy(REPOSITORY / "train_ddp.py", path)
        shutil.copytree(REPOSITORY / "data", path / "data")
        for script in SCRIPTS.glob("*.py"):
            shutil.copy(script, path)
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        yield Soak(folder=path, minutes=minutes, times=times, seed=seed, engine=engine, environment=environment)
