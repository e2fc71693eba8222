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
        docker(state, *flags, "--network", run, *labels, "composesim-test-base:1", "sleep", "600")
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
