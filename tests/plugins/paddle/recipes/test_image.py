"""`image build --recipe paddle` makes an image in which the real Paddle trains."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.recipes.images import build, in_image
from tests.scenarios.conftest import Project

__all__ = ["build"]
pytestmark = [pytest.mark.recipes, pytest.mark.docker]


def test_paddle_trains_where_there_is_no_torch(build: Callable[..., str], project: Project) -> None:
    tag = build("paddle")
    assert in_image(tag, "python3", "-c", "import importlib.util; print(importlib.util.find_spec('torch'))") == "None"

    done = project.run("up", "--recipe", "paddle", "--engine", "docker", "--image", tag, "--json")

    assert (done.status, done.report["verdict"], done.report["image"]) == (0, "passed", tag), done.stderr
