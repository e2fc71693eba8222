"""How does one framework start on a node? One pure file a recipe; this module says what a recipe is and finds it by name."""

from __future__ import annotations

from importlib import import_module
from typing import Protocol, cast

from compose_sim.core.spec import ClusterSpec


class Recipe(Protocol):
    """What a recipe module provides: the commands of a run's master and of its nodes."""

    EMULATES_GPUS: bool  # whether what ranks run can be shown emulated GPUs

    def launcher(self, spec: ClusterSpec) -> str:
        """How ranks are started on a node (node/launchers.py)."""
        ...

    def master_command(
        self, spec: ClusterSpec, *, python: str, folder: str, host: str, port: int, store_port: int
    ) -> tuple[str, ...]:
        """The master's command line; `folder` is the run's folder as nodes see it."""
        ...

    def node_command(
        self,
        spec: ClusterSpec,
        *,
        python: str,
        folder: str,
        target: str,
        is_module: bool,
        arguments: tuple[str, ...],
        first_node: str,
    ) -> tuple[str, ...]:
        """A node's command line, which runs `target` on each of its ranks."""
        ...


def load_recipe(name: str) -> Recipe:
    """The recipe module of that name."""
    return cast(Recipe, import_module(f"compose_sim.core.recipes.{name}"))
