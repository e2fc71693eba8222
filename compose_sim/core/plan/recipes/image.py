"""Describe what the image of a recipe contains. A recipe may define it as IMAGE; else it contains the PACKAGES."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from compose_sim.errors import SpecError

DEFAULT_BASE_TAG = "pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime"  # the official runtime image
DEFAULT_BASE = f"{DEFAULT_BASE_TAG}@sha256:db80a41f8428644cebcb3d75b0b62df334ab6c0e75785951eb25f48bfbd42407"
PYTHON_BASE = "python:3.11-slim"  # for recipes without torch
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
    compiled: str = ""  # the framework that `build-NAME.sh` compiles in a separate build stage with compilers


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
