"""Define recipes: each says how one framework starts on the nodes, in one pure module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Protocol, cast

from compose_sim.core.plan.model import PlannedPort, Program
from compose_sim.core.request.names import RECIPE_GROUP
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.errors import SpecError
from compose_sim.plugins.registry import built_in


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
    module = (
        of_plug_in.load() if of_plug_in else import_module(f"compose_sim.core.plan.recipes.{name.replace('-', '_')}")
    )
    return cast(Recipe, module)


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
