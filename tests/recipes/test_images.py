"""`image build --recipe` makes images in which the real frameworks run, without what was only needed to build them."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.builders import PATIENCE_S, ROOT
from tests.scenarios.conftest import Project

pytestmark = [pytest.mark.recipes, pytest.mark.docker]
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
SUM_OF_RANKS = (
    "import torch, horovod.torch as hvd; hvd.init(); print('sum', hvd.allreduce(torch.ones(1), op=hvd.Sum).item())"
)


def run(*argv: str | Path, timeout: float = 10 * PATIENCE_S) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def build() -> Iterator[Callable[..., str]]:
    """Build the image of a recipe on this distribution's Python; return the tag, which exists until the last test."""
    tags: list[str] = []
    base = run(ROOT / "scripts" / "base_image.sh").splitlines()[-1]
    certificates = ["--ca-certificate", str(CERTIFICATES)] if CERTIFICATES.is_file() else []

    def make(recipe: str, *options: str) -> str:
        tags.append(f"composesim-test-{recipe}:{os.getpid()}")
        command = [sys.executable, "-m", "compose_sim", "image", "build", "--recipe", recipe, "--base", base]
        run(*command, "--tag", tags[-1], *certificates, *options)
        return tags[-1]

    yield make
    subprocess.run(["docker", "image", "rm", *tags], capture_output=True, check=False)


def in_image(tag: str, *command: str) -> str:
    return run("docker", "run", "--rm", tag, *command)


def test_horovod_comes_from_a_wheel_with_sshd_and_no_key(
    build: Callable[..., str], recipes_python: Path, tmp_path: Path
) -> None:
    built = Path(run(ROOT / "scripts" / "recipes.sh", "--wheels"))
    for wheel in built.glob("*.whl"):
        shutil.copy(wheel, tmp_path)
    index = ["--extra-index-url", os.environ["TORCH_INDEX"]] if os.environ.get("TORCH_INDEX") else []
    torch = f"torch=={importlib.metadata.version('torch')}"
    run(recipes_python, "-m", "pip", "download", "-q", "--no-deps", *index, "--dest", tmp_path, torch)

    tag = build("horovod", "--wheels", str(tmp_path), f"--torch={torch}")

    said = in_image(tag, "horovodrun", "--gloo", "-np", "2", "python3", "-W", "ignore", "-c", SUM_OF_RANKS)
    assert said.count("sum 2.0") == 2
    assert in_image(tag, "sh", "-c", "ls /etc/ssh /usr/sbin/sshd").split().count("/usr/sbin/sshd") == 1
    assert "ssh_host_" not in in_image(tag, "ls", "/etc/ssh")


def test_paddle_trains_where_there_is_no_torch(build: Callable[..., str], project: Project) -> None:
    tag = build("paddle")
    assert in_image(tag, "python3", "-c", "import importlib.util; print(importlib.util.find_spec('torch'))") == "None"

    done = project.run("up", "--recipe", "paddle", "--engine", "docker", "--image", tag, "--json")

    assert (done.status, done.report["verdict"], done.report["image"]) == (0, "passed", tag), done.stderr
