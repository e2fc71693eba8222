"""How does one framework start on a node? One pure file a recipe; this module says what a recipe is and finds it by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Protocol, cast

from compose_sim.core.plan.model import PlannedPort, Program
from compose_sim.core.request.spec import ClusterSpec

BUILT_IN = ("ddp", "exec", "horovod", "paddle", "paddle-ray", "ray")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What a recipe lowers to command lines: the request, and where things are. Paths are as nodes see them."""

    spec: ClusterSpec
    program: Program
    python: str
    folder: str  # the run's
    contained: bool  # nodes are containers, with names and addresses of their own
    host: str  # the master's name or address
    port: int  # where nodes join; 0: any free port
    store_port: int  # what ranks are told as MASTER_PORT; 0: any free port
    # Where the master is to listen for what `ports` publishes, by name: on the local engine another port than asked for, if that
    # is taken. Empty while `ports` is asked.
    published: Mapping[str, int] = field(default_factory=dict)


class Recipe(Protocol):
    """What a recipe module provides: values, and pure functions of a Cluster."""

    EMULATES_GPUS: bool  # whether what ranks run can be shown emulated GPUs
    RUNS_COMMANDS: bool  # what runs is any command, not a Python script
    DRIVEN: bool  # one program on the master drives all nodes, and its exit code is the run's (driven.py)
    PACKAGES: Mapping[str, str]  # distributions that nodes need, and the least version of each
    EXAMPLE: str  # what runs where no script is named, below composesim's assets; "" for nothing
    OPTIONS: Mapping[str, str]  # its own options (`--option NAME=VALUE`), each with what it means
    EXIT_CODES: Mapping[int, str]  # what an exit code of its programs means, where that is not the script's own

    def launcher(self, spec: ClusterSpec) -> str:
        """How ranks are started on a node (node/agent/launchers.py)."""
        ...

    def master_command(self, cluster: Cluster) -> tuple[str, ...]:
        """The master's command line."""
        ...

    def node_command(self, cluster: Cluster) -> tuple[str, ...]:
        """A node's command line."""
        ...

    def environment(self, cluster: Cluster) -> Mapping[str, str]:
        """What all nodes and the master are told beyond what every run is."""
        ...

    def ports(self, cluster: Cluster) -> tuple[PlannedPort, ...]:
        """What of the master a person may open from this machine."""
        ...


def load_recipe(name: str) -> Recipe:
    """The built-in recipe of that name."""
    return cast(Recipe, import_module(f"compose_sim.core.plan.recipes.{name.replace('-', '_')}"))
