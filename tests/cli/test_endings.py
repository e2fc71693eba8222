"""A run that the user ends has one ending everywhere, however it is ended: interrupted, with a report and exit code 130."""

from __future__ import annotations

import os
import pty
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from compose_sim.app.listener import QuietListener
from compose_sim.app.request import read_request
from compose_sim.app.session import Session
from compose_sim.core.plan.model import Plan
from compose_sim.engine.local.engine import LocalEngine
from compose_sim.engine.protocol import Progress
from compose_sim.engine.run_folder.finished import finished_runs
from compose_sim.engine.run_folder.folder import runs_of
from compose_sim.errors import EnvironmentMissingError
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


@pytest.mark.parametrize("name", ["INT", "TERM"])
def test_a_signal_during_the_inspection_interrupts_too(project: Project, name: str) -> None:
    project.write("train.py", "print(1)\n")
    python = project.folder / project.write("python", f"#!/bin/sh\nkill -{name} $PPID\nexec sleep 3\n")
    python.chmod(0o755)

    done = project.run(*UP, "--python", str(python), "train.py")

    assert (done.returncode, done.stderr.strip()) == (130, "Interrupted.")


def test_an_interrupt_before_the_start_leaves_nothing(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.write("train.py", "print(1)\n")
    spec = project.write("composesim.yaml", "script: train.py\nengine: local\nlauncher: env\n")
    session = Session(read_request({}, file=project.folder / spec))
    lay_out = session._lay_out

    def interrupted() -> None:
        lay_out()
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(session, "_lay_out", interrupted)
    with pytest.raises(KeyboardInterrupt):
        session.run(QuietListener())

    assert list((project.folder / ".composesim" / "runs").iterdir()) == []


@pytest.mark.parametrize("stored", [False, True])
def test_a_run_that_the_engine_refuses_leaves_only_what_an_earlier_run_stored(project: Project, stored: bool) -> None:
    project.write("train.py", "print(1)\n")
    runs = project.folder / ".composesim" / "runs"
    if stored:
        (runs / "refused" / "shared").mkdir(parents=True)
        (runs / "refused" / "shared" / "checkpoint").write_text("step 7")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        spec = f"script: train.py\nengine: local\nlauncher: env\nmaster_port: {taken.getsockname()[1]}\n"
        session = Session(read_request({}, file=project.folder / project.write("spec.yaml", spec)), name="refused")
        with pytest.raises(EnvironmentMissingError, match="port"):
            session.run(QuietListener())

    assert [run.name for run in runs_of(project.folder)] == ["refused"] * stored
    assert list(finished_runs(project.folder)) == []
    assert list(runs.glob("*/shared/checkpoint")) == [runs / "refused" / "shared" / "checkpoint"] * stored


def test_a_run_goes_on_without_a_reader_and_other_verbs_end_like_any_command_in_a_pipe(project: Project) -> None:
    project.write("train.py", "print('unread')\n")
    reader, writer = os.pipe()
    os.close(reader)

    def status(*words: str) -> int:
        return subprocess.run([*COMMAND, *words], cwd=project.folder, stdout=writer, stderr=writer).returncode

    assert status(*UP, "--nodes", "1", "--name", "unread", "train.py") == 0
    assert (project.folder / ".composesim" / "runs" / "unread" / "report.json").is_file()
    assert [status("--help"), status("ps", "--all")] == [141, 141]
    os.close(writer)


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
