"""A run is removed without a docker command, whatever state its containers are in."""

from __future__ import annotations

import secrets
import subprocess
from pathlib import Path

import pytest

from compose_sim.engine.docker.engine import DockerEngine

pytestmark = pytest.mark.docker


def docker(*arguments: str) -> list[str]:
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, check=True).stdout.split()


def test_everything_of_a_run_is_removed_at_once_and_nothing_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, other = (f"remove-{secrets.token_hex(4)}" for _ in range(2))
    for name in (run, other):
        docker("network", "create", "--internal", "--label", f"composesim.run={name}", name)
    labels = ("--label", f"composesim.run={run}", "--label", "composesim.role=node")
    for state in ("create", "run"):
        flags = ("--detach",) if state == "run" else ()
        named = ("--name", f"composesim-{run}-{state}-1")
        docker(state, *flags, *named, "--network", run, *labels, "composesim-test-base:1", "sleep", "600")
    calls, command = tmp_path / "calls", tmp_path / "docker"
    command.write_text(f"#!/bin/sh\necho $1 >> {calls}\nexit 1\n")
    command.chmod(0o755)

    try:
        with monkeypatch.context() as patch:
            patch.setenv("PATH", str(tmp_path), prepend=":")
            DockerEngine().remove(run)
        assert docker("ps", "--all", "--quiet", "--filter", f"label=composesim.run={run}") == []
        assert docker("network", "ls", "--format", "{{.Name}}", "--filter", "label=composesim.run").count(run) == 0
        assert docker("network", "ls", "--format", "{{.Name}}", "--filter", f"label=composesim.run={other}") == [other]
        assert not calls.exists()
        DockerEngine().remove(run)  # nothing is left of it, which is no error
    finally:
        docker("network", "rm", other)


def test_a_container_with_the_labels_of_a_node_that_composesim_did_not_start_is_left_alone() -> None:
    """An image that `docker commit` makes of a node has them, and so has each container of that image."""
    run = f"commit-{secrets.token_hex(4)}"
    labels = ("--label", f"composesim.run={run}", "--label", "composesim.role=node")
    (container,) = docker("create", *labels, "composesim-test-base:1", "sleep", "600")

    try:
        assert run not in DockerEngine().remaining_runs()
        DockerEngine().remove(run)
        assert docker("ps", "--all", "--quiet", "--no-trunc", "--filter", f"label=composesim.run={run}") == [container]
    finally:
        docker("rm", container)
