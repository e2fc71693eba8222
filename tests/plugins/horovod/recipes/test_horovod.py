"""Horovod for real: horovodrun on the master reaches the nodes by ssh, and composesim sees what the ranks do."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.builders import PATIENCE_S, ROOT
from tests.scenarios.conftest import Outcome, Project, containers_of, eventually

pytestmark = [pytest.mark.recipes, pytest.mark.docker]

STEPS = """
import sys
import time

import horovod.torch as hvd
import torch

hvd.init()


def train():
    for step in range(1, 1000):
        hvd.allreduce(torch.ones(1), name="ones")
        if hvd.rank() == 1 and step == 10:
            FAULT
        time.sleep(0.05)


train()
"""


@pytest.fixture
def folder(project: Project) -> Project:
    """A project that ordinary users may read, as nodes run as one; folders of tests are private."""
    project.folder.chmod(0o755)
    return project


def words(python: Path, run: str, *more: str, nodes: int = 2) -> tuple[str, ...]:
    """Return the arguments of `up` for a run of this recipe."""
    own = ("--recipe", "horovod", "--engine", "docker", "--python", str(python), "--nodes", str(nodes))
    return ("up", "--json", *own, "--name", run, "--timeout", "120s", *more)


def log_of(project: Project, run: str, name: str) -> str:
    """Return what the driver or a rank printed."""
    return project.log_of(run, name)


def metrics_of(project: Project, run: str) -> list[dict[str, Any]]:
    """Return the metrics that all ranks printed, in no order between ranks."""
    files = project.written(run, "logs/node-*.*.log")
    lines = [
        line for file in files for line in file.read_text().splitlines() if line.startswith("{") and line.endswith("}")
    ]
    return [json.loads(line) for line in lines]


def test_the_example_learns_and_its_time_is_reported(folder: Project, recipes_python: Path) -> None:
    """With Horovod's own options; every rank has a log, and keys exist in memory only."""
    run = folder.named("digits")
    knobs = ("--timeline", "--fusion-threshold", "1m", "--cycle-time", "2")

    done = folder.run(*words(recipes_python, run, *knobs))

    report = done.report
    assert (report["verdict"], done.status) == ("passed", 0), done
    assert report["metrics"]["accuracy"] > 0.9
    assert report["driver"]["facts"]["words"] == "2 ranks on 2 nodes have joined over gloo"
    assert 0 < report["timings"]["ready_s"] <= report["timings"]["first_step_s"]
    assert [node["steps"] for node in report["nodes"]] == [report["metrics"]["step"] + 1] * 2, "one makes its state"
    assert [check["id"] for check in report["checks"] if check["status"] in ("failed", "warned")] == []
    timeline = report["timeline"]
    assert timeline["compute"] + timeline["all_reduce"] + timeline["idle"] == pytest.approx(1.0, abs=1e-3)
    assert min(timeline["compute"], timeline["all_reduce"]) > 0
    folder_of_run = folder.folder / ".composesim" / "runs" / run
    assert (folder_of_run / timeline["file"]).read_text().startswith("[")
    driver = log_of(folder, run, "driver.0")
    assert "--cycle-time-ms 2" in driver
    assert "ssh-rank -- " in driver
    assert "PRIVATE KEY" not in "".join(
        file.read_text(errors="replace") for file in folder_of_run.rglob("*") if file.is_file()
    )
    assert "PasswordAuthentication" not in log_of(folder, run, "driver.0")


def test_mpi_drives_the_same_ranks(folder: Project, recipes_python: Path) -> None:
    """The daemons of mpirun are started over the same ssh; two ranks per node."""
    run = folder.named("mpi")
    script = folder.write(
        "train.py", STEPS.replace("FAULT", "print(hvd.size(), hvd.local_rank(), hvd.mpi_enabled()); return")
    )
    script = folder.write("train.py", (folder.folder / script).read_text().replace("if hvd.rank() == 1 and", "if"))

    done = folder.run(*words(recipes_python, run, "--mpi", "--nproc-per-node", "2", script))

    assert done.report["verdict"] == "passed", done
    assert done.report["driver"]["facts"]["words"].endswith("over MPI")
    assert log_of(folder, run, "node-1.3") == "4 1 True\n"


def test_what_a_rank_raises_is_the_cause(folder: Project, recipes_python: Path) -> None:
    """The cause is not what other ranks report when the rank is gone, nor what horovodrun reports."""
    run = folder.named("raises")
    script = folder.write("train.py", STEPS.replace("FAULT", "raise ValueError('no more data')"))

    done = folder.run(*words(recipes_python, run, script))

    cause = done.report["cause"]
    assert (cause["node"], cause["rank"], cause["message"]) == ("node-1", 1, "ValueError: no more data")
    assert cause["traceback"].count("File") == 2
    assert done.status == 1


def test_training_goes_on_while_nodes_go_and_come(folder: Project, recipes_python: Path) -> None:
    """A node is killed, comes back, and one more is added: three ranks, two, three, four."""
    run = folder.named("elastic")
    patience = ("--env", "HOROVOD_GLOO_TIMEOUT_SECONDS=8", "--elastic", "2:4", "--timeout", "15m")
    up = folder.start(*words(recipes_python, run, *patience, "--", "--epochs", "1000", nodes=3))

    def ranks() -> list[int]:
        return [metric["ranks"] for metric in metrics_of(folder, run)]

    try:
        eventually(lambda: 3 in ranks(), within=2 * PATIENCE_S, what="three ranks train")
        assert folder.run("fault", "kill", "node-1", "--run", run, "--for", "2s").status == 0
        eventually(lambda: 2 in ranks(), within=2 * PATIENCE_S, what="two ranks go on")
        assert folder.run("scale", "4", "--run", run).status == 0
        eventually(lambda: 4 in ranks(), within=2 * PATIENCE_S, what="four ranks go on")
        seen = [metric["loss"] for metric in metrics_of(folder, run) if "loss" in metric]
        assert min(seen) < 1.5, "what was learned was kept"
    finally:
        folder.run("down", "--run", run)
        up.communicate(timeout=PATIENCE_S)
    assert containers_of(run) == []


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            ("--mount", "/dev/null:/usr/sbin/sshd:ro"),
            "sshd, which Horovod needs to reach nodes, is not installed in this image",
        ),
        (("--image", "composesim-test-image:1", "--python", "python3"), "horovod is not installed"),
    ],
)
def test_what_is_missing_is_named_and_nothing_is_left(
    folder: Project, recipes_python: Path, more: tuple[str, ...], message: str
) -> None:
    run = folder.named("missing")
    script = folder.write("train.py", "")

    done: Outcome = folder.run(*words(recipes_python, run, *more, script))

    assert (done.report["verdict"], done.report["cause"]["node"]) == ("failed", "driver")
    assert message in done.report["cause"]["message"]


def test_a_horovod_that_is_too_old_is_named(recipes_python: Path, tmp_path: Path) -> None:
    """The driver checks; here it requires a version that does not exist."""
    driver = ROOT / "compose_sim" / "node" / "__main__.py"
    options = ("--slots", "1", "--ranks", "1", "--least", "99.0", "--", "train.py")
    (tmp_path / "events").mkdir()
    environment = {
        "COMPOSESIM_DIR": str(tmp_path),
        "COMPOSESIM_RUN": "old",
        "COMPOSESIM_NODE": "driver",
        "PATH": os.environ["PATH"],
    }

    done = subprocess.run(
        [recipes_python, driver, "horovod-driver", *options],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 91
    assert "is too old: 99.0 or newer is needed" in done.stderr
    assert "is too old" in (tmp_path / "events" / "driver.jsonl").read_text()


def test_a_python_without_horovod_is_refused_before_anything_starts(folder: Project) -> None:
    script = folder.write("train.py", "")

    done = folder.run(*words(ROOT / ".venv" / "bin" / "python", folder.named("none"), "--image", "host", script))

    assert done.status != 0
    assert "has no horovod" in done.stdout + done.stderr
    assert "composesim image build --recipe horovod" in done.stdout + done.stderr


def test_the_same_script_runs_under_horovodrun_alone(recipes_python: Path) -> None:
    """Run it as a user would without composesim."""
    command = [recipes_python.with_name("horovodrun"), "--gloo", "-np", "2", recipes_python]
    script = ROOT / "compose_sim/plugins/horovod/templates/examples/horovod_digits.py"

    done = subprocess.run(
        [*command, script, "--epochs", "1"], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )

    assert done.returncode == 0, done.stderr
    assert '"accuracy"' in done.stdout


def test_horovod_is_built_for_torch_and_gloo(recipes_python: Path) -> None:
    program = recipes_python.with_name("horovodrun")
    said = subprocess.run([program, "--check-build"], capture_output=True, text=True, check=True).stdout

    assert "[X] PyTorch" in said
    assert "[X] Gloo" in said
