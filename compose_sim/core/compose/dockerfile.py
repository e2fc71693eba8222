"""Describe the image of nodes, and render it as a Dockerfile."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

import jinja2

from compose_sim.core.compose.templates import template_environment
from compose_sim.core.plan.recipes import DEFAULT_BASE, DEFAULT_BASE_TAG, Framework
from compose_sim.errors import SpecError

DEFAULT_TORCH = "torch==2.13.0"
_REFERENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """What goes into one image: names for the Dockerfile, and which optional files are in the build context."""

    base: str = DEFAULT_BASE
    torch: str = (
        DEFAULT_TORCH  # a pip requirement, installed if the base has no torch; empty for an image without torch
    )
    frameworks: tuple[Framework, ...] = ()
    system_packages: tuple[str, ...] = ()
    compiled: str = ""  # the framework without a wheel, which `build-NAME.sh` compiles
    compiled_on: str = ""  # the image with compilers for it; empty: nothing is compiled
    requirements: bool = False  # requirements.txt
    wheels: bool = False  # a build context named `wheels`
    ca_certificate: bool = False  # build-ca.crt, trusted by pip while building
    keep_ca_certificate: bool = False  # and by the image afterwards

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules that the finished image must be able to import."""
        named = tuple(framework.module for framework in self.frameworks if framework.module)
        return ("torch", *named) if self.torch else named


def compilers_of(base: str) -> str:
    """
    Return the image to compile on: PyTorch and CUDA publish a `-devel` image with compilers for each `-runtime` image.

    A digest is that of the base, so the image with compilers has none.
    """
    named, runtime, rest = base.rpartition("-runtime")
    is_tag = runtime and ":" in named.rpartition("/")[2]
    return f"{named}-devel{rest.partition('@')[0]}" if is_tag else base


def render_dockerfile(image: Image, *, loader: jinja2.BaseLoader) -> str:
    """Return the Dockerfile of an image; raise SpecError if a base is not an image reference."""
    for option, reference in (("--base", image.base), ("--compile-on", image.compiled_on or image.base)):
        if not _REFERENCE.fullmatch(reference):
            raise SpecError(f"{option} '{reference}' is not the name of an image", hint=f"{option} {DEFAULT_BASE_TAG}")
    environment = template_environment(loader)
    environment.filters["shell"] = _shell
    return environment.get_template("templates/image/Dockerfile.j2").render(image=image)


def _shell(text: str) -> str:
    """Quote one shell word; raise SpecError if it would not stay on one line."""
    if any(not character.isprintable() for character in text):
        raise SpecError(f"'{text}' is not a requirement", hint=f"--torch {DEFAULT_TORCH}")
    return shlex.quote(text)
