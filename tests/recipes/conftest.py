"""What do the recipes' tests run on? `.venv-recipes`, where the real frameworks are: scripts/recipes.sh makes it."""

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
    """An empty project, of whose runs nothing may be left when the test ends."""
    yield from project_in(tmp_path)
