"""What tests of plug-ins share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)
