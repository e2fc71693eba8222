"""Build images with `image build --recipe`, for the tests of plug-ins."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.builders import PATIENCE_S, ROOT

CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


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
