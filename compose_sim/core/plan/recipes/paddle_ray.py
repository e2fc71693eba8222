"""How does PaddlePaddle run in Ray? As any program in the actors and tasks of a Ray cluster, whose nodes have Paddle as well."""

from __future__ import annotations

from collections.abc import Mapping

from compose_sim.core.plan.node_roles import role_words
from compose_sim.core.plan.recipes import Cluster, driver_commands, paddle, ray

EMULATES_GPUS = False
RUNS_COMMANDS = False
DRIVEN = True
PACKAGES: Mapping[str, str] = {**ray.PACKAGES, **paddle.PACKAGES}
EXAMPLE = "templates/examples/paddle_ray_search.py"
OPTIONS = ray.OPTIONS
EXIT_CODES: Mapping[int, str] = {
    **ray.EXIT_CODES,
    90: "Ray or Paddle is not in the nodes' Python",
    91: "the nodes' Ray or Paddle is too old",
}

launcher, node_command = ray.launcher, ray.node_command
environment, ports = ray.environment, ray.ports


def master_command(cluster: Cluster) -> tuple[str, ...]:
    """The head of a Ray cluster, which looks for Paddle first."""
    return driver_commands.master_command(
        cluster, role_words(cluster.folder, "paddle-driver", *ray.driver_words(cluster)[2:])
    )
