"""How does a PaddlePaddle script start on a node? By the real paddle.distributed.launch, whose nodes meet on the first of each round.

Failures are composesim's to deal with: it stops the ranks of all nodes, and begins another round where `--max-restarts` or
`--elastic` leave one. Paddle's own restarts (`--max_restart`, 3 by default, which want an etcd) are off.
"""

from __future__ import annotations

from collections.abc import Mapping

from compose_sim.core.plan.model import PlannedPort
from compose_sim.core.plan.recipes import Cluster, rendezvous_commands
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.errors import SpecError

EMULATES_GPUS = False  # the emulation is torch's
RUNS_COMMANDS = False
DRIVEN = False
PACKAGES: Mapping[str, str] = {"paddlepaddle": "3.0"}
EXAMPLE = "templates/examples/paddle_digits.py"
OPTIONS: Mapping[str, str] = {}
EXIT_CODES: Mapping[int, str] = {}

_MOST_PORTS = 99  # that launchers and ranks of one node may take: Paddle chooses among them


def launcher(spec: ClusterSpec) -> str:
    """`paddle`; SpecError where another one was asked for."""
    if "launcher" in spec.model_fields_set:
        raise SpecError(
            f"launcher '{spec.launcher}' is torch's, and recipe 'paddle' starts ranks by paddle.distributed.launch",
            hint="leave --launcher out",
        )
    if spec.master != "service":
        raise SpecError(
            f"--master '{spec.master}' is for scripts that listen at MASTER_ADDR, and Paddle's launcher brings its own store",
            hint="leave --master out",
        )
    return "paddle"


def master_command(cluster: Cluster) -> tuple[str, ...]:
    """The master of the rounds, without a store: Paddle brings its own."""
    return rendezvous_commands.master_command(cluster, serves_store=False)


def node_command(cluster: Cluster) -> tuple[str, ...]:
    """The node's agent, then after `--` what each rank runs."""
    return rendezvous_commands.node_command(cluster, launcher(cluster.spec), first_rank_listens=True)


def environment(cluster: Cluster) -> Mapping[str, str]:
    """Which ports Paddle takes beside the master's: the next ones in containers, on this machine any that are free."""
    first = cluster.store_port + 1
    return {"PORT_RANGE": f"{first}:{first + _MOST_PORTS}"} if cluster.contained else {}


def ports(cluster: Cluster) -> tuple[PlannedPort, ...]:
    """None."""
    return ()
