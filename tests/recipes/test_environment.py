"""The frameworks are installed in the versions of the images, and work together in one Python."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from compose_sim import assets
from compose_sim.core.plan.recipes import Contents, load_recipe
from compose_sim.core.request.names import RECIPE_NAMES
from tests.builders import PATIENCE_S

pytestmark = pytest.mark.recipes
REQUIREMENTS = [file for folder in assets.templates() for file in folder.glob("image/requirements/*.txt")]


def run(*argv: str | Path) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_has_what_images_are_pinned_to(recipes_python: Path) -> None:
    text = "".join(file.read_text() for file in REQUIREMENTS)
    pins = dict(re.findall(r"^([\w-]+)(?:\[.*\])?==(\S+)$", text, re.MULTILINE))

    code = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
    versions = run(recipes_python, "-c", code, *pins).split()

    assert {name: version.partition("+")[0] for name, version in zip(pins, versions, strict=True)} == pins


def test_all_are_imported_in_one_process(recipes_python: Path) -> None:
    """Each brings a separate protobuf, gRPC or OpenMP: installing side by side does not mean that they can be loaded."""
    images = (getattr(load_recipe(name), "IMAGE", Contents()) for name in RECIPE_NAMES)
    modules = sorted({framework.module for image in images for framework in image.frameworks})
    code = f"import {', '.join(modules)}; print('loaded')"

    assert run(recipes_python, "-W", "ignore", "-c", code).splitlines()[-1] == "loaded"
