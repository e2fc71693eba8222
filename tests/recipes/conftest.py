"""Provide `.venv-recipes`, which has the real frameworks: scripts/recipes.sh creates it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders import ROOT
from tests.scenarios.conftest import Project, project_in


@pytest.fixture(scope="session")
def recipes_python() -> Path:
    """The Python with composesim, Horovod, Ray and PaddlePaddle: `--python` of a run, or the one to start composesim with."""
    checked = subprocess.run([ROOT / "scripts" / "recipes.sh", "--check"], capture_output=True, text=True, check=False)
    if checked.returncode:
        pytest.fail(f"{checked.stderr.strip()} Type: make recipes")
    return ROOT / ".venv-recipes" / "bin" / "python"


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """An empty project; when the test ends, nothing of its runs may be left."""
    yield from project_in(tmp_path)
