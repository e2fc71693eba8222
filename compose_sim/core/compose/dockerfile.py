"""Describe the image of a recipe's nodes, and render it as a Dockerfile."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

import jinja2

from compose_sim.core.compose.templates import template_environment
from compose_sim.errors import SpecError

DEFAULT_BASE_TAG = "pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime"  # the official runtime image
DEFAULT_BASE = f"{DEFAULT_BASE_TAG}@sha256:db80a41f8428644cebcb3d75b0b62df334ab6c0e75785951eb25f48bfbd42407"
PYTHON_BASE = "python:3.11-slim"  # for recipes without torch
DEFAULT_TORCH = "torch==2.13.0"
_REFERENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """Packages that an image gets if the base lacks them, as listed in `requirements/NAME.txt`."""

    name: str
    module: str = ""  # nothing is installed if the base can import it; empty: pip decides
    requirements: tuple[str, ...] = ()  # the lines of NAME.txt, if composesim ships none
    unwanted: tuple[str, ...] = ()  # dependencies to uninstall afterwards


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What the image of a recipe contains."""

    base: str = DEFAULT_BASE  # unless the user names another one
    torch: bool = True
    frameworks: tuple[Framework, ...] = ()
    system_packages: tuple[str, ...] = ()  # of Debian or Ubuntu
    compiled: str = ""  # the framework to compile in a separate build stage with compilers


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """What goes into one image: names for the Dockerfile, and which optional files are in the build context."""

    base: str = DEFAULT_BASE
    torch: str = (
        DEFAULT_TORCH  # a pip requirement, installed if the base has no torch; empty for an image without torch
    )
    frameworks: tuple[Framework, ...] = ()
    system_packages: tuple[str, ...] = ()
    compiled_on: str = ""  # the image with compilers, for a framework without a wheel; empty: nothing is compiled
    requirements: bool = False  # requirements.txt
    wheels: bool = False  # a build context named `wheels`
    ca_certificate: bool = False  # build-ca.crt, trusted by pip while building
    keep_ca_certificate: bool = False  # and by the image afterwards

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules that the finished image must be able to import."""
        named = tuple(framework.module for framework in self.frameworks if framework.module)
        return ("torch", *named) if self.torch else named


_RAY = Framework(name="ray", module="ray.rllib")
_PADDLE = Framework(name="paddle", module="paddle")
_FOR_PADDLE = ("libgomp1",)  # unlike torch's, Paddle's wheel has no OpenMP
RECIPES: Mapping[str, Contents] = {
    "ddp": Contents(),
    "exec": Contents(),
    "horovod": Contents(
        frameworks=(Framework(name="horovod", module="horovod.torch"),),
        system_packages=("openmpi-bin", "openssh-client", "openssh-server"),
        compiled="horovod",
    ),
    "ray": Contents(frameworks=(_RAY,)),
    "paddle": Contents(base=PYTHON_BASE, torch=False, frameworks=(_PADDLE,), system_packages=_FOR_PADDLE),
    "paddle-ray": Contents(base=PYTHON_BASE, torch=False, frameworks=(_PADDLE, _RAY), system_packages=_FOR_PADDLE),
}


def contents_of_packages(recipe: str, packages: Mapping[str, str]) -> Contents:
    """Return the image contents for a recipe of another package: the packages that it needs, by minimum version."""
    if not _NAME.fullmatch(recipe):
        raise SpecError(
            f"no image can be named after recipe '{recipe}'", hint="rename the recipe, using letters, digits, - and _"
        )
    wanted = tuple(f"{name}>={least}" if least else name for name, least in packages.items() if name != "torch")
    frameworks = (Framework(name=recipe, requirements=wanted),) if wanted else ()
    torch = "torch" in packages
    return Contents(base=DEFAULT_BASE if torch else PYTHON_BASE, torch=torch, frameworks=frameworks)


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
