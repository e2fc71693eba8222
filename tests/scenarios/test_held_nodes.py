"""A run that ends while nodes of it are stopped or frozen leaves nothing behind, however it ends."""

from __future__ import annotations

import signal
import subprocess

from compose_sim.engine.registry import make_engine
from tests.builders import PATIENCE_S
from tests.scenarios.conftest import BARE, PAUSES, Project, eventually, wait_for_line


def with_held_nodes(project: Project, engine: str, run: str) -> subprocess.Popen[str]:
    """Start an elastic run, and stop one node by signals and one by the kernel's freezer, which does not end the run."""
    project.write("train.py", PAUSES)
    up = project.start("up", "--engine", engine, *BARE, "--elastic", "1:2", "--name", run, "train.py")
    wait_for_line(up, "begun")
    for kind, node in (("stop", "0"), ("pause", "1")):
        done = project.run("fault", kind, node, "--run", run)
        assert done.status == 0, done.stderr
    return up


def test_ctrl_c_lets_held_nodes_end(project: Project, engine: str) -> None:
    run = project.named("held")
    up = with_held_nodes(project, engine, run)

    up.send_signal(signal.SIGINT)
    _, words = up.communicate(timeout=PATIENCE_S)

    assert up.returncode == 130, words
    assert project.report_of(run)["verdict"] == "interrupted"


def test_kill_9_of_composesim_leaves_no_held_node(project: Project, engine: str) -> None:
    """The fixture looks for containers, networks and processes too."""
    run = project.named("orphaned")
    up = with_held_nodes(project, engine, run)

    up.kill()
    up.communicate(timeout=PATIENCE_S)

    eventually(
        lambda: run not in make_engine(engine).remaining_runs(),
        within=PATIENCE_S,
        what="the supervisor removed the run",
    )
