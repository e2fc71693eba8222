"""A Docker daemon goes down during a run: the verdict, and what is left once the daemon is back."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator

import pytest

from bench.private_daemon import CAN_RUN, PrivateDaemon, private_daemon
from tests.builders import PATIENCE_S
from tests.scenarios.conftest import BARE, PAUSES, Project, eventually, wait_for_line

pytestmark = [
    pytest.mark.docker,
    pytest.mark.train,
    pytest.mark.skipif(not CAN_RUN, reason="only root can start a Docker daemon"),
]


@pytest.fixture(scope="module")
def running() -> Iterator[PrivateDaemon]:
    with private_daemon() as daemon:
        yield daemon


@pytest.fixture
def daemon(running: PrivateDaemon, monkeypatch: pytest.MonkeyPatch) -> Iterator[PrivateDaemon]:
    monkeypatch.setenv("DOCKER_HOST", running.endpoint)
    yield running
    running.resume()


def started(project: Project, name: str) -> subprocess.Popen[str]:
    """A running run of two nodes."""
    words = (*BARE, "--engine", "docker", "--image", "host", "--nodes", "2", "--name", name)
    process = project.start("up", *words, project.write("train.py", PAUSES))
    for _ in range(2):
        wait_for_line(process, "begun")
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["term", "kill"])
def test_a_restart_makes_the_run_inconclusive_and_leaves_nothing(
    project: Project, daemon: PrivateDaemon, number: signal.Signals
) -> None:
    name = project.named("restart")
    with started(project, name) as process:
        daemon.end(number)
        daemon.start()

        assert process.wait(PATIENCE_S) == 3
    cause = project.report_of(name)["cause"]
    assert cause["kind"] == "engine"
    assert f"'{daemon.endpoint}'" in cause["message"]
    eventually(lambda: daemon.left(name) == [], within=PATIENCE_S, what="nothing is left")


def test_a_user_who_does_not_wait_for_the_daemon_leaves_the_rest_to_the_supervisor(
    project: Project, daemon: PrivateDaemon
) -> None:
    name = project.named("away")
    with started(project, name) as process:
        daemon.end(signal.SIGKILL)
        assert process.stderr is not None
        until = "Waiting to remove the nodes"
        assert any(until in line for line in process.stderr)
        process.send_signal(signal.SIGTERM)

        assert process.wait(PATIENCE_S) == 3
    log = project.folder / ".composesim" / "runs" / name / "supervisor.log"
    eventually(lambda: "trying again" in log.read_text(), within=PATIENCE_S, what="the supervisor tries")
    daemon.start()

    eventually(lambda: "nothing is left" in log.read_text(), within=PATIENCE_S, what="the supervisor is done")
    assert daemon.left(name) == []


def test_a_daemon_that_hangs_is_named_and_delays_no_interrupt_for_long(project: Project, daemon: PrivateDaemon) -> None:
    name = project.named("hung")
    with started(project, name) as process:
        daemon.pause()
        process.send_signal(signal.SIGINT)
        other = project.run("down", "--run", project.named("other"))
        assert process.stderr is not None
        assert any("Waiting to remove the nodes" in line for line in process.stderr)
        process.send_signal(signal.SIGINT)

        assert process.wait(PATIENCE_S) == 130
        daemon.resume()
    assert (other.status, f"'{daemon.endpoint}' hangs" in other.stderr) == (4, True)
    log = project.folder / ".composesim" / "runs" / name / "supervisor.log"
    eventually(lambda: "nothing is left" in log.read_text(), within=PATIENCE_S, what="the supervisor is done")
    assert daemon.left(name) == []


def test_a_private_daemon_leaves_no_folder() -> None:
    with private_daemon() as daemon:
        subprocess.run(["docker", "--host", daemon.endpoint, "import", "-", "empty"], input=bytes(1024), check=True)
        done = daemon.docker("run", "--network", "host", "empty", "/missing")
        assert "no such file" in done.stderr

    assert not daemon.folder.exists()
