"""Start a Ray cluster on nodes that also have PaddlePaddle, for programs that use Paddle in actors and tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePosixPath

from compose_sim.core.plan.node_roles import role_command
from compose_sim.core.plan.recipes import ClusterLayout, driver_commands
from compose_sim.core.request.names import RECIPE_GROUP
from compose_sim.plugins.paddle import core as paddle
from compose_sim.plugins.registry import built_in

ray = built_in(RECIPE_GROUP)["ray"].load()

EMULATES_GPUS = False
RUNS_COMMANDS = False
DRIVEN = True
PACKAGES: Mapping[str, str] = {**ray.PACKAGES, **paddle.PACKAGES}
EXAMPLE = str(PurePosixPath(__file__).parents[1] / "templates" / "examples" / "paddle_ray_search.py")
IMAGE = replace(paddle.IMAGE, frameworks=(*paddle.IMAGE.frameworks, *ray.IMAGE.frameworks))
OPTIONS = ray.OPTIONS
EXIT_CODES: Mapping[int, str] = {
    **ray.EXIT_CODES,
    90: "Ray or Paddle is not installed in the nodes' Python",
    91: "the nodes' Ray or Paddle is too old",
}

launcher, node_command = ray.launcher, ray.node_command
environment, ports = ray.environment, ray.ports


def master_command(cluster: ClusterLayout) -> tuple[str, ...]:
    """Start the driver of Ray, which checks for Paddle first."""
    return driver_commands.master_command(
        cluster, role_command(cluster.folder, "paddle-driver", *ray.driver_options(cluster))
    )
