"""Does an image hold what was asked for and nothing that was only needed to build it?"""

from __future__ import annotations

import jinja2
import pytest

from compose_sim.core.imagefile import DEFAULT_BASE, ImageRecipe, render_dockerfile
from compose_sim.errors import SpecError
from tests.builders import ROOT

LOADER = jinja2.FileSystemLoader(ROOT)


def test_as_it_comes_it_is_the_official_image_with_a_user_and_no_secret() -> None:
    text = render_dockerfile(ImageRecipe(), loader=LOADER)

    assert text.splitlines()[1] == f"FROM {DEFAULT_BASE}"
    assert "python3 -c 'import torch' 2>/dev/null" in text
    assert "requirements" not in text
    assert "build-ca" not in text
    assert "wheels" not in text
    assert [line for line in text.splitlines() if line.startswith("USER")] == ["USER root", "USER 1000"]


def test_certificates_and_requirements_are_mounted_and_stay_in_no_layer() -> None:
    text = render_dockerfile(ImageRecipe(requirements=True, wheels=True, ca_certificate=True), loader=LOADER)

    assert text.count("--mount=type=bind,source=build-ca.crt") == 2
    assert text.count("--mount=type=bind,from=wheels") == 2
    assert text.count("--mount=type=bind,source=requirements.txt") == 1
    assert "COPY" not in text
    assert "COPY build-ca.crt" in render_dockerfile(
        ImageRecipe(ca_certificate=True, keep_ca_certificate=True), loader=LOADER
    )


@pytest.mark.parametrize("base", ["", "a b", "x\nRUN evil", "-x", "ä"])
def test_a_base_that_is_no_image_is_refused(base: str) -> None:
    with pytest.raises(SpecError, match="is not the name of an image"):
        render_dockerfile(ImageRecipe(base=base), loader=LOADER)


def test_a_requirement_is_one_word_for_the_shell() -> None:
    text = render_dockerfile(ImageRecipe(torch="torch>=2.4,<3; echo evil"), loader=LOADER)
    assert "pip install 'torch>=2.4,<3; echo evil'\n" in text

    with pytest.raises(SpecError, match="is not a requirement"):
        render_dockerfile(ImageRecipe(torch="torch\nUSER root"), loader=LOADER)
