"""A wrong request is refused with the value quoted and a command to type, before anything starts."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.scenarios.conftest import COMMAND, Project


@pytest.mark.parametrize(
    ("argv", "status", "words"),
    [
        (["up", "nope.py"], 2, ["the script 'nope.py' does not exist", "Try: "]),
        (["up", "."], 2, ["the script '.' is not a file"]),
        (["up", "broken.py"], 2, ["'broken.py' is not valid Python", "line 1"]),
        (["up", "--nodes", "0", "ok.py"], 2, ["--nodes", "'0'"]),
        (["up", "--nodes", "-1", "ok.py"], 2, ["--nodes", "'-1'"]),
        (["up", "--nodes", "abc", "ok.py"], 2, ["'abc'"]),
        (["up", "--nodes", "1001", "ok.py"], 2, ["1001 nodes are too many", "render"]),
        (["up", "--memory", "900t", "ok.py"], 2, ["memory limit of", "--memory"]),
        (["up", "--backend", "nccl", "--engine", "local", "ok.py"], 2, ["nccl"]),
        (["up", "--mount", "missing:/data", "ok.py"], 2, ["missing"]),
        (["up", "--mount", ".composesim/runs:/x", "ok.py"], 2, ["keeps runs", "--allow-mount"]),
        (["up", "--mount", "link:/x", "ok.py"], 2, ["keeps runs", "--allow-mount"]),
        (["up", "--env-file", "missing.env", "ok.py"], 2, ["missing.env"]),
        (["up", "--python", "no-such-python", "ok.py"], 4, ["no-such-python"]),
        (["up", "-f", "missing.yaml", "ok.py"], 2, ["missing.yaml"]),
        (["up", "--nope", "ok.py"], 2, ["--nope"]),
        (["logs", "--run", "nope"], 2, ["nope"]),
        (["down", "--run", "nope"], 2, ["nope"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)  # fmt: skip
def test_is_refused(project: Project, argv: list[str], status: int, words: list[str]) -> None:
    project.write("ok.py", "print('ok')\n")
    project.write("broken.py", "def broken(:\n")
    (project.folder / ".composesim" / "runs").mkdir(parents=True)
    (project.folder / "link").symlink_to(".composesim")
    outcome = project.run(*argv)

    assert outcome.status == status, outcome.stderr
    for word in words:
        assert word in outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert not list(project.folder.glob(".composesim/runs/*/plan.json"))


def test_errors_are_json_where_json_was_asked_for(project: Project) -> None:
    outcome = project.run("up", "--json", "nope.py")

    assert outcome.status == 2
    assert outcome.report["error"]["message"] == "the script 'nope.py' does not exist"
    assert outcome.report["error"]["exit_code"] == 2


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"PATH": "/nonexistent"}, "the docker command is not installed"),
        ({"DOCKER_HOST": "tcp://192.0.2.1:2375"}, "'tcp://192.0.2.1:2375' is on another machine"),
        (
            {"DOCKER_HOST": "unix:///nonexistent/docker.sock"},
            "no Docker daemon answers at 'unix:///nonexistent/docker.sock'",
        ),
    ],
)
def test_an_engine_that_cannot_be_used_is_told_apart(project: Project, environment: dict[str, str], words: str) -> None:
    project.write("ok.py", "print('ok')\n")
    done = subprocess.run(
        [*COMMAND, "up", "--engine", "docker", "ok.py"],
        cwd=project.folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 4
    assert words in done.stderr
