"""What does the image of the nodes consist of, and how does that read as a Dockerfile?"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

import jinja2

from compose_sim.core.templates import template_environment
from compose_sim.errors import SpecError

DEFAULT_BASE = "pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime"  # the official runtime image
DEFAULT_TORCH = "torch==2.13.0"
_REFERENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRecipe:
    """What goes into an image: names in the text of the Dockerfile, and whether the files beside it are there."""

    base: str = DEFAULT_BASE
    torch: str = DEFAULT_TORCH  # a requirement for pip, used where the base has no torch
    requirements: bool = False  # requirements.txt
    wheels: bool = False  # a build context named `wheels`
    ca_certificate: bool = False  # build-ca.crt, trusted by pip while building
    keep_ca_certificate: bool = False  # and by the image afterwards


def render_dockerfile(recipe: ImageRecipe, *, loader: jinja2.BaseLoader) -> str:
    """The Dockerfile of a recipe; SpecError for a base that is no image reference."""
    if not _REFERENCE.fullmatch(recipe.base):
        raise SpecError(f"'{recipe.base}' is not the name of an image", hint=f"--base {DEFAULT_BASE}")
    environment = template_environment(loader)
    environment.filters["shell"] = _shell
    return environment.get_template("templates/image/Dockerfile.j2").render(recipe=recipe)


def _shell(text: str) -> str:
    """One word of a shell's command line, on one line of the file."""
    if any(not character.isprintable() for character in text):
        raise SpecError(f"'{text}' is not a requirement", hint=f"--torch {DEFAULT_TORCH}")
    return shlex.quote(text)
