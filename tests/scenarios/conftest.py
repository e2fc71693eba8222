"""Run the real command. Each scenario checks the result, and that nothing is left behind."""

from __future__ import annotations

import json
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.builders import PATIENCE_S
from tests.report_schema import validate_reports_in

COMMAND = [sys.executable, "-m", "compose_sim"]
# A rank that reports when it has begun, and continues until it is stopped.
FOREVER = """
import time
import torch.distributed as dist

dist.init_process_group("gloo")
print("begun", flush=True)
while True:
    time.sleep(3600)
"""


# The same for tests that are not about training: a run of bare processes, in which nothing imports torch, takes a second.
BARE = ("--launcher", "env")
# In a loop, because a handler interrupts it: composesim asks a rank that stands still for its stack.
PAUSES = "import signal\nprint('begun', flush=True)\nwhile True: signal.pause()\n"


@dataclass(frozen=True)
class Outcome:
    """How a command ended, and its output."""

    status: int
    stdout: str
    stderr: str

    @property
    def report(self) -> dict[str, Any]:
        """The report, or the error, that `--json` printed."""
        value: dict[str, Any] = json.loads(self.stdout)
        return value


@dataclass(frozen=True)
class Project:
    """A folder to run in."""

    folder: Path
    token: str = field(default_factory=lambda: secrets.token_hex(3))

    def named(self, name: str) -> str:
        """Return a run name that no other test on this engine has."""
        return f"{name}-{self.token}"

    def report_of(self, run: str) -> dict[str, Any]:
        """Return the report that a run left."""
        report: dict[str, Any] = json.loads((self.folder / ".composesim" / "runs" / run / "report.json").read_text())
        return report

    def written(self, run: str, pattern: str) -> list[Path]:
        """Return the files that nodes of a run have written; each container writes into its own folder."""
        folder = self.folder / ".composesim" / "runs" / run
        return [*folder.glob(pattern), *folder.glob(f"nodes/*/{pattern}")]

    def log_of(self, run: str, name: str) -> str:
        """Return what a log of a run contains, such as that of the rank `node-1.1`."""
        (log,) = self.written(run, f"logs/{name}.log")
        return log.read_text()

    def write(self, name: str, text: str) -> str:
        """Write a file of the project."""
        (self.folder / name).write_text(text)
        return name

    def run(self, *argv: str, timeout: float = 2 * PATIENCE_S) -> Outcome:
        """Run the command to the end."""
        done = subprocess.run(
            [*COMMAND, *argv],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    def start(self, *argv: str) -> subprocess.Popen[str]:
        """Start the command."""
        return subprocess.Popen(
            [*COMMAND, *argv],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            stdin=subprocess.DEVNULL,
        )


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """An empty project; when the test ends, nothing of its runs may be left."""
    yield from project_in(tmp_path)


def project_in(folder: Path) -> Iterator[Project]:
    """Yield a project in an empty folder; nothing of its runs may be left afterwards."""
    yield Project(folder)
    validate_reports_in(folder)
    names = [run.name for run in folder.glob(".composesim/runs/*")]
    left = [process.info for process in psutil.process_iter(["pid", "cmdline"]) if _is_of(process, folder)]
    assert left == []
    for name in names:
        assert containers_of(name) == []
        assert networks_of(name) == []


@pytest.fixture(params=["local", pytest.param("docker", marks=pytest.mark.docker)])
def engine(request: pytest.FixtureRequest) -> str:
    """Each engine in turn."""
    return str(request.param)


def containers_of(run: str) -> list[str]:
    """Return the containers of a run, in any state."""
    return _docker("ps", "--all", "--quiet", "--filter", f"label=composesim.run={run}")


def networks_of(run: str) -> list[str]:
    """Return the networks of a run."""
    return _docker("network", "ls", "--quiet", "--filter", f"label=composesim.run={run}")


def rules_of(run: str) -> list[str]:
    """Return the rules of the firewall for the nodes of a run; [] if only root may list them."""
    kinds = [kind for kind in ("iptables-nft", "iptables-legacy") if shutil.which(kind)]
    shown = [subprocess.run([kind, "-S"], capture_output=True, text=True).stdout.splitlines() for kind in kinds]
    return [rule for rules in shown for rule in rules if f"composesim:{run}@" in rule]


def eventually(check: Callable[[], bool], *, within: float, what: str) -> None:
    """Wait until a condition holds; fail with its name if it does not in time."""
    import time

    deadline = time.monotonic() + within
    while not check():
        assert time.monotonic() < deadline, f"within {within} s it did not come about that {what}"
        time.sleep(0.1)


def wait_for_line(process: subprocess.Popen[str], text: str) -> None:
    """Read the command's output up to the line that contains a text."""
    assert process.stdout is not None
    for line in process.stdout:
        if text in line:
            return
    pytest.fail(f"'{text}' never came: {process.stderr.read() if process.stderr else ''}")


def _docker(*argv: str) -> list[str]:
    try:
        return subprocess.run(["docker", *argv], capture_output=True, text=True, check=False).stdout.split()
    except FileNotFoundError:
        return []


def _is_of(process: psutil.Process, folder: Path) -> bool:
    try:
        return process.environ().get("COMPOSESIM_DIR", "").startswith(str(folder))
    except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
        return False
