"""What does every row of the soak work with: a folder to run in, the command, a seed, and what a play left to read?"""

from __future__ import annotations

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
GRACE_S = 120.0  # for a script to end once it was told to
COMMAND = [sys.executable, "-m", "compose_sim"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table: what was asked for and what was seen."""

    what: str
    wanted: str
    seen: str
    reached: bool
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Soak:
    """One soak: where it runs, for how long, and with which seed."""

    folder: Path
    minutes: float
    seed: int
    engine: str
    environment: dict[str, str]
    count: int = 0

    @property
    def prefix(self) -> str:
        """What all names of this soak begin with."""
        return f"soak-{os.getpid()}"

    def new_name(self) -> str:
        """A run name that nobody else has on this engine."""
        self.count += 1
        return f"{self.prefix}-{self.count}"

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
        Play a scenario, a text or a name in the library; the report with `events`, composesim's own.

        When `enough` says so of these, or patience is at an end, the script finds the file `enough` in its shared folder.
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
                    with suppress(FileNotFoundError):  # it has not begun
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
        """`composesim up` under way, its output in files."""
        with (self.folder / f"{name}.out").open("w") as out, (self.folder / f"{name}.err").open("w") as err:
            argv = [*COMMAND, "up", "--name", name, "--engine", self.engine, *words]
            return subprocess.Popen(
                argv, cwd=self.folder, env=self.environment, stdout=out, stderr=err, text=True, stdin=subprocess.DEVNULL
            )

    def run_folder(self, name: str) -> Path:
        """The folder of a run."""
        return self.folder / ".composesim" / "runs" / name

    def events(self, name: str, of: str = "composesim") -> list[dict[str, Any]]:
        """The events that somebody wrote in a run, in order; none where there are none yet."""
        try:
            lines = (self.run_folder(name) / "events" / f"{of}.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines if line.endswith("}")]


@contextmanager
def prepared(*, minutes: float, seed: int, engine: str) -> Iterator[Soak]:
    """A soak, with a folder that goes when it ends."""
    # Not in /tmp, which is private to every node.
    with tempfile.TemporaryDirectory(prefix="composesim-soak.", dir="/var/tmp") as folder:
        path = Path(folder)
        path.chmod(0o755)
        shutil.copy(REPOSITORY / "train_ddp.py", path)
        shutil.copytree(REPOSITORY / "data", path / "data")
        for script in SCRIPTS.glob("*.py"):
            shutil.copy(script, path)
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        yield Soak(folder=path, minutes=minutes, seed=seed, engine=engine, environment=environment)
