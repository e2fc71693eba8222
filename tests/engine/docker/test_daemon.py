"""Requests to the daemon's socket: what they answer, and that a run needs few processes besides."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from compose_sim.engine.docker import daemon
from compose_sim.engine.docker.engine import DockerEngine
from compose_sim.engine.lifetime.orphans import find_runs
from compose_sim.errors import DaemonError
from tests.contract.bench import Bench


@pytest.mark.docker
def test_a_run_starts_the_docker_command_for_compose_and_events_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, command = tmp_path / "calls", tmp_path / "bin" / "docker"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\necho "$1" >> {calls}\nexec {shutil.which("docker")} "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(command.parent), prepend=":")
    bench = Bench(DockerEngine(), tmp_path)

    plan = bench.start("pass", "raise SystemExit(3)")
    ended = bench.ended(plan)
    left = bench.engine.remaining_runs()
    bench.engine.remove(plan.run)

    assert {name: status.exit_code for name, status in ended.items()} == {"node-0": 0, "node-1": 3}
    assert plan.run in left
    assert plan.run not in bench.engine.remaining_runs()
    assert set(calls.read_text().split()) == {"compose", "events"}


@pytest.mark.docker
def test_a_refusal_is_an_error_with_the_words_of_the_daemon() -> None:
    with pytest.raises(DaemonError, match="refused 'GET /containers/no%20such/json'") as refused:
        daemon.ask("/containers/no such/json")
    assert "No such container" in refused.value.evidence
    assert daemon.ask("/containers/no such/json", ignore=[daemon.NOT_FOUND]) is None


def test_a_daemon_that_is_away_has_no_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")
    with pytest.raises(DaemonError, match=f"'unix://{tmp_path}/nobody.sock' does not answer: No such file"):
        daemon.labeled("networks", "composesim.run")
    assert [found for found in find_runs(tmp_path) if found.engine.name == "docker"] == []
