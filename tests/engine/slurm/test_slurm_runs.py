"""Runs on a real Slurm of four nodes on this machine: how they end, what they leave, and what bad input does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.builders import ROOT
from tests.contract.bench import until

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("slurm_cluster")]

COMMAND = [sys.executable, "-m", "compose_sim", "up", "--engine", "slurm"]


def slurm(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def jobs_of(run: str) -> list[str]:
    return slurm("squeue", "--me", "--noheader", "--format=%i", f"--name=composesim-{run}").split()


def up(folder: Path, *arguments: str, before: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [*before, *COMMAND, *arguments],
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def report_of(folder: Path, run: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((folder / ".composesim" / "runs" / run / "report.json").read_text())
    return report


def wait_for_nodes(folder: Path, run: str, count: int) -> str:
    """Return the run's job once its nodes run their ranks."""
    events = folder / ".composesim" / "runs" / run / "events"
    until(lambda: sum('"rank-started"' in path.read_text() for path in events.glob("node-*.jsonl")) == count)
    return jobs_of(run)[0]


def preempted(job: str) -> None:
    slurm("sbatch", "--partition=urgent", "--nodes=4", "--cpus-per-task=8", "--output=/dev/null", "--wrap=true")


@pytest.mark.parametrize(
    ("happens", "exit_code", "state"),
    [(preempted, 3, "PREEMPTED")],
)
def test_what_ends_a_job_is_the_cause(
    tmp_path: Path, happens: Callable[[str], None], exit_code: int, state: str
) -> None:
    run = f"ends-{state.lower().replace('_', '-')}"
    process = up(tmp_path, "--nodes", "2", "--name", run, "--recipe", "exec", "--", "sleep", "600")
    job = wait_for_nodes(tmp_path, run, 2)
    happens(job)
    output, _ = process.communicate()

    assert process.returncode == exit_code, output
    assert f"[{state}]" in report_of(tmp_path, run)["cause"]["message"]
    assert jobs_of(run) == []


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)], ids=["ctrl-c", "kill"])
def test_no_job_outlives_composesim(tmp_path: Path, number: signal.Signals, exit_code: int) -> None:
    run = f"gone-{number}"
    process = up(tmp_path, "--nodes", "2", "--name", run, "--recipe", "exec", "--", "sleep", "600")
    wait_for_nodes(tmp_path, run, 2)

    process.send_signal(number)
    process.communicate()

    assert process.returncode == exit_code
    until(lambda: jobs_of(run) == [])


def test_a_pending_job_is_cancelled_too(tmp_path: Path) -> None:
    process = up(
        tmp_path, "--nodes", "2", "--name", "waits", "--sbatch", "--begin=now+1hour", "--recipe", "exec", "true"
    )
    until(lambda: jobs_of("waits") != [])

    process.send_signal(signal.SIGINT)
    output, _ = process.communicate()

    assert process.returncode == 130, output
    assert jobs_of("waits") == []


@pytest.mark.parametrize(
    ("arguments", "exit_code", "words"),
    [
        (["--partition", "nowhere"], 2, "invalid partition"),
        (["--time", "2:00:00"], 2, "time limit"),
        (["--nodes", "9"], 2, "ode count specification"),
        (["--sbatch", "--no-such-option"], 2, "no-such-option"),
        (["--with", "jupyter"], 2, "--with"),
        (["--recipe", "ray"], 2, "'ray'"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else None,
)
def test_bad_input_is_refused_with_what_slurm_says(
    tmp_path: Path, arguments: list[str], exit_code: int, words: str
) -> None:
    process = up(
        tmp_path,
        "--name",
        "refused",
        *(["--recipe", "exec"] if "--recipe" not in arguments else []),
        *arguments,
        "--",
        "true",
    )
    output, _ = process.communicate()

    assert process.returncode == exit_code, output
    assert words in output
    assert "Try:" in output
    assert jobs_of("refused") == []


def test_a_controller_that_does_not_answer(tmp_path: Path, slurm_cluster: Path) -> None:
    controller = int((slurm_cluster / "slurmctld.pid").read_text())
    os.kill(controller, signal.SIGSTOP)
    try:
        process = up(tmp_path, "--name", "silent", "--recipe", "exec", "--", "true")
        output, _ = process.communicate()
    finally:
        os.kill(controller, signal.SIGCONT)

    assert process.returncode == 4, output
    assert "scontrol ping" in output


def test_without_slurm_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    process = up(tmp_path, "--name", "none", "--recipe", "exec", "--", "true")
    output, _ = process.communicate()

    assert process.returncode == 4, output
    assert "login node" in output
