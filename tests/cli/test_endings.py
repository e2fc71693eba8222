"""A run that the user ends has one ending everywhere, however it is ended: interrupted, with a report and exit code 130."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
from pathlib import Path

from compose_sim.app.listener import QuietListener
from compose_sim.app.request import read_request
from compose_sim.app.session import Session
from compose_sim.core.plan.model import Plan
from compose_sim.engine.local.engine import LocalEngine
from compose_sim.engine.protocol import Progress
from tests.cli.conftest import COMMAND, UP, WAITING, Project


class Interrupted(LocalEngine):
    """The local engine, with Ctrl-C while it prepares the start."""

    def prepare(self, plan: Plan, progress: Progress) -> str:
        signal.raise_signal(signal.SIGINT)
        return super().prepare(plan, progress)


def test_an_interrupt_during_the_start_is_in_the_report(project: Project) -> None:
    project.write("train.py", "print(1)\n")
    spec = project.write("composesim.yaml", "script: train.py\nengine: local\nlauncher: env\n")
    session = Session(read_request({}, file=project.folder / spec))
    session.__dict__["engine"] = Interrupted()

    report = session.run(QuietListener())

    assert (report.verdict, report.exit_code) == ("interrupted", 130)
    assert session.was_interrupted
    assert project.run("report", "--run", session.name).stdout.splitlines()[-1].startswith("✘ interrupted")
    assert project.run("wait", "--run", session.name).returncode == 130


def test_closing_the_terminal_interrupts_the_run_and_leaves_a_report(project: Project) -> None:
    os.mkfifo(project.folder / "word.0")
    project.write("train.py", WAITING)
    ours, theirs = pty.openpty()
    words = [
        *COMMAND,
        *UP,
        "--nodes",
        "1",
        "--name",
        project.folder.name.replace("_", "-")[-20:].strip("-"),
        "train.py",
    ]

    def take_terminal() -> None:
        os.setsid()
        os.close(os.open(os.ttyname(0), os.O_RDWR))  # the first terminal that a session opens controls it

    with subprocess.Popen(
        words, cwd=project.folder, stdin=theirs, stdout=theirs, stderr=theirs, preexec_fn=take_terminal
    ) as up:
        os.close(theirs)
        seen = b""
        while b"begun 0" not in seen:
            seen += os.read(ours, 4096)
        os.close(ours)

    assert up.returncode == 130
    run = next(Path(project.folder, ".composesim", "runs").iterdir()).name
    assert project.run("report", "--run", run).stdout.splitlines()[-1].startswith("✘ interrupted")
