"""Define recipes: each says how one framework starts on the nodes, in one pure module."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Protocol, cast

from compose_sim.core.plan.model import PlannedPort, Program
from compose_sim.core.request.names import RECIPE_GROUP
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.errors import SpecError
from compose_sim.plugins.registry import built_in

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterLayout:
    """What a recipe builds its command lines from: the request, and paths and ports in the nodes."""

    spec: ClusterSpec
    program: Program
    python: str
    folder: str  # of the run
    contained: bool  # nodes are containers, with separate names and addresses
    host: str  # the master's name or address
    port: int  # nodes join here; 0: any free port
    store_port: int  # MASTER_PORT of the ranks; 0: any free port
    # Name of a port in `ports` -> where the master listens. With the local engine this may not be the port that `ports`
    # returned, if that is taken. It is empty while `ports` runs.
    published: Mapping[str, int] = field(default_factory=dict)


class Recipe(Protocol):
    """The values and functions of a recipe module."""

    EMULATES_GPUS: bool  # whether composesim can emulate GPUs in the ranks
    RUNS_COMMANDS: bool  # whether the program is any command instead of a Python script
    DRIVEN: bool  # whether one program on the master drives the nodes (driver_commands.py); the run exits with the same code
    PACKAGES: Mapping[str, str]  # distributions that nodes need -> the oldest version that works
    EXAMPLE: str  # the default script, in composesim's assets; "" for none
    OPTIONS: Mapping[str, str]  # of `--option NAME=VALUE` -> description
    EXIT_CODES: Mapping[int, str]  # exit codes of the framework's programs -> meaning

    def launcher(self, spec: ClusterSpec) -> str:
        """Return how nodes start ranks (node/agent/launchers.py)."""

    def master_command(self, cluster: ClusterLayout) -> tuple[str, ...]:
        """Return the command line of the master."""

    def node_command(self, cluster: ClusterLayout) -> tuple[str, ...]:
        """Return the command line of a node."""

    def environment(self, cluster: ClusterLayout) -> Mapping[str, str]:
        """Return variables for the nodes and the master."""

    def ports(self, cluster: ClusterLayout) -> tuple[PlannedPort, ...]:
        """Return the ports of the master to publish on this machine."""


def load_recipe(name: str) -> Recipe:
    """Return the recipe of that name in RECIPE_NAMES."""
    of_plug_in = built_in(RECIPE_GROUP).get(name)
    return cast(Recipe, of_plug_in.load() if of_plug_in else import_module(f"compose_sim.core.plan.recipes.{name}"))


def contents_of_packages(recipe: str, packages: Mapping[str, str]) -> Contents:
    """Return the image contents for a recipe without IMAGE: the packages that it needs, by minimum version."""
    if not _NAME.fullmatch(recipe):
        raise SpecError(
            f"no image can be named after recipe '{recipe}'", hint="rename the recipe, using letters, digits, - and _"
        )
    wanted = tuple(f"{name}>={least}" if least else name for name, least in packages.items() if name != "torch")
    frameworks = (Framework(name=recipe, requirements=wanted),) if wanted else ()
    torch = "torch" in packages
    return Contents(base=DEFAULT_BASE if torch else PYTHON_BASE, torch=torch, frameworks=frameworks)


def refuse_launcher(spec: ClusterSpec, reason: str, *, hint: str = "leave --launcher out") -> None:
    """Raise SpecError if the user chose a launcher."""
    if "launcher" in spec.model_fields_set:
        raise SpecError(f"--launcher '{spec.launcher}' does not apply to recipe '{spec.recipe}': {reason}", hint=hint)


def no_environment(cluster: ClusterLayout) -> Mapping[str, str]:
    """Return no variables, as `environment` of a recipe."""
    return {}


def no_ports(cluster: ClusterLayout) -> tuple[PlannedPort, ...]:
    """Return no ports, as `ports` of a recipe."""
    return ()
