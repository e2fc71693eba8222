"""An image contains what was requested, and nothing that was only needed to build it."""

from __future__ import annotations

import re

import jinja2
import pytest

from compose_sim import assets
from compose_sim.core.compose.dockerfile import (
    Image,
    compilers_of,
    render_dockerfile,
)
from compose_sim.core.plan.recipes import DEFAULT_BASE, PYTHON_BASE, Framework, contents_of_packages, load_recipe
from compose_sim.core.request.names import RECIPE_NAMES
from compose_sim.errors import SpecError
from tests.builders import ROOT

DIGEST = re.compile(r"[a-z]+/[a-z]+:[\w.-]+@sha256:[0-9a-f]{64}")
LOADER = jinja2.FileSystemLoader(ROOT)
RECIPES = {name: image for name in RECIPE_NAMES if (image := getattr(load_recipe(name), "IMAGE", None))}


def test_as_it_comes_it_is_the_official_image_with_a_user_and_no_secret() -> None:
    text = render_dockerfile(Image(), loader=LOADER)

    assert text.splitlines()[1] == f"FROM {DEFAULT_BASE}"
    assert "python3 -c 'import torch' 2>/dev/null" in text
    assert "requirements" not in text
    assert "build-ca" not in text
    assert "wheels" not in text
    assert [line for line in text.splitlines() if line.startswith("USER")] == ["USER root", "USER 1000"]


def test_certificates_and_requirements_are_mounted_and_stay_in_no_layer() -> None:
    text = render_dockerfile(Image(requirements=True, wheels=True, ca_certificate=True), loader=LOADER)

    assert text.count("--mount=type=bind,source=build-ca.crt") == 2
    assert text.count("--mount=type=bind,from=wheels") == 2
    assert text.count("--mount=type=bind,source=requirements.txt") == 1
    assert "COPY" not in text
    assert "COPY build-ca.crt" in render_dockerfile(Image(ca_certificate=True, keep_ca_certificate=True), loader=LOADER)


@pytest.mark.parametrize("base", ["", "a b", "x\nRUN evil", "-x", "ä"])
def test_a_base_that_is_no_image_is_refused(base: str) -> None:
    with pytest.raises(SpecError, match="is not the name of an image"):
        render_dockerfile(Image(base=base), loader=LOADER)


def test_a_requirement_is_one_word_for_the_shell() -> None:
    text = render_dockerfile(Image(torch="torch>=2.4,<3; echo evil"), loader=LOADER)
    assert "pip install 'torch>=2.4,<3; echo evil'\n" in text

    with pytest.raises(SpecError, match="is not a requirement"):
        render_dockerfile(Image(torch="torch\nUSER root"), loader=LOADER)


def test_each_framework_says_in_a_file_what_is_installed() -> None:
    frameworks = [each for contents in RECIPES.values() for each in contents.frameworks]
    files = {file.stem: file for folder in assets.templates() for file in folder.glob("image/requirements/*.txt")}

    assert {framework.name for framework in frameworks} <= set(files)
    assert all("==" in file.read_text() for file in files.values())


def test_a_framework_is_installed_where_the_base_has_none() -> None:
    frameworks = (Framework(name="paddle", module="paddle"), Framework(name="ray", module="ray.rllib"))
    text = render_dockerfile(Image(torch="", frameworks=frameworks), loader=LOADER)

    assert "torch" not in text.replace(DEFAULT_BASE, "")
    assert "python3 -c 'import paddle' 2>/dev/null || \\\n    python3 -m pip install --requirement" in text
    assert text.splitlines()[-1] == "RUN python3 -W ignore -c 'import paddle, ray.rllib'"


@pytest.mark.parametrize(
    ("base", "compilers"),
    [
        ("pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime", "pytorch/pytorch:2.13.0-cuda13.0-cudnn9-devel"),
        (DEFAULT_BASE, "pytorch/pytorch:2.13.0-cuda13.0-cudnn9-devel"),
        ("nvidia/cuda:13.0.1-runtime-ubuntu24.04", "nvidia/cuda:13.0.1-devel-ubuntu24.04"),
        ("python:3.12-slim", "python:3.12-slim"),
        ("localhost:5000/my-runtime/image-runtime:1", "localhost:5000/my-runtime/image-runtime:1"),
    ],
)
def test_compilers_are_in_the_twin_of_a_base(base: str, compilers: str) -> None:
    assert compilers_of(base) == compilers


def test_bases_are_named_by_digest() -> None:
    """All but the one that is rebuilt under its tag with each security fix."""
    bases = {PYTHON_BASE} | {contents.base for contents in RECIPES.values()}

    assert [image for image in bases if not DIGEST.fullmatch(image)] == [PYTHON_BASE]
    assert PYTHON_BASE in (ROOT / "docs" / "decisions-trust.md").read_text()


def test_a_recipe_from_elsewhere_gets_the_packages_that_it_names() -> None:
    with_torch = contents_of_packages("deepspeed", {"torch": "2.4", "deepspeed": "0.15"})
    without = contents_of_packages("jax", {"jax": ""})

    assert (with_torch.torch, with_torch.frameworks[0].requirements) == (True, ("deepspeed>=0.15",))
    assert (without.torch, without.frameworks[0].requirements) == (False, ("jax",))
    with pytest.raises(SpecError, match="no image can be named after recipe"):
        contents_of_packages("../x", {})
