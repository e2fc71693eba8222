"""What the daemon's socket says is what the docker command says."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from compose_sim.engine.host.docker_facts import docker_facts
from compose_sim.engine.host.docker_socket import docker_endpoint


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file with the settings of the docker command, which does not exist yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.delenv("DOCKER_CONTEXT", raising=False)
    return tmp_path / "config.json"


def docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, check=True).stdout.strip()


def record_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a docker command first on PATH that notes each call, and return the file with the notes."""
    calls, command = tmp_path / "calls", tmp_path / "bin" / "docker"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\necho "$@" >> {calls}\nexec {shutil.which("docker")} "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(command.parent), prepend=":")
    calls.touch()
    return calls


@pytest.mark.docker
def test_the_facts_are_those_of_the_docker_command(settings: Path) -> None:
    facts = docker_facts()
    assert facts.available
    assert facts.version == docker("version", "--format", "{{.Server.Version}}")
    assert facts.compose_version == docker("compose", "version", "--short")
    info = json.loads(docker("info", "--format", "{{json .}}"))
    assert (facts.cpus, facts.memory_bytes) == (info["NCPU"], info["MemTotal"])
    images = docker("image", "ls", "--format", "{{.Repository}}:{{.Tag}}", "composesim*").split()
    assert {tag for tag in images if "<none>" not in tag} == set(facts.images)
    networks = docker("network", "inspect", "--format", "{{range .IPAM.Config}}{{.Subnet}} {{end}}", "bridge")
    assert set(networks.split()) & set(facts.used_subnets)


@pytest.mark.docker
def test_the_second_inspection_starts_no_docker_command(
    settings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = record_calls(tmp_path, monkeypatch)
    first = docker_facts()
    assert calls.read_text().split("\n")[:-1] == ["compose version --short"]
    assert docker_facts().compose_version == first.compose_version
    assert calls.read_text().count("\n") == 1


@pytest.mark.docker
def test_the_endpoint_is_that_of_the_context_in_use(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def of_docker() -> str:
        return docker("context", "inspect", "--format", "{{.Endpoints.docker.Host}}")

    assert docker_endpoint() == of_docker()
    for text in ("{}", '{"currentContext": ""}', '{"currentContext": "default"}'):
        settings.write_text(text)
        assert docker_endpoint() == of_docker()
    docker("context", "create", "elsewhere", "--docker", "host=unix:///nowhere.sock")
    monkeypatch.setenv("DOCKER_CONTEXT", "elsewhere")
    assert docker_endpoint() == of_docker() == "unix:///nowhere.sock"
    monkeypatch.delenv("DOCKER_CONTEXT")
    settings.write_text('{"currentContext": "elsewhere"}')
    assert docker_endpoint() == of_docker() == "unix:///nowhere.sock"
    assert not docker_facts().available


def test_an_endpoint_in_the_environment_wins(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://192.0.2.1:2375")
    assert docker_endpoint() == "tcp://192.0.2.1:2375"
