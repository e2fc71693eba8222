"""Provide an empty project for runs with the real frameworks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scenarios.conftest import Project, project_in


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """An empty project; when the test ends, nothing of its runs may be left."""
    yield from project_in(tmp_path)
