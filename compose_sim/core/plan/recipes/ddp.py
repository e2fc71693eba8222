"""How does a torch.distributed script start on a node? Through composesim's own launcher, which asks the master for its place."""

from __future__ import annotations

from collections.abc import Mapping

from compose_sim.core.plan.model import PlannedPort
from compose_sim.core.plan.recipes import Cluster, rendezvous_commands
from compose_sim.core.request.spec import ClusterSpec

EMULATES_GPUS = True
RUNS_COMMANDS = False
DRIVEN = False
PACKAGES: Mapping[str, str] = {"torch": "2.0"}
EXAMPLE = "train_ddp.py"
OPTIONS: Mapping[str, str] = {}
EXIT_CODES: Mapping[int, str] = {}


def launcher(spec: ClusterSpec) -> str:
    """As the person asked."""
    return spec.launcher


def master_command(cluster: Cluster) -> tuple[str, ...]:
    """The master of the rounds."""
    return rendezvous_commands.master_command(cluster, serves_store=not _listens_on_first_node(cluster.spec))


def node_command(cluster: Cluster) -> tuple[str, ...]:
    """The node's agent, then after `--` what each rank runs."""
    return rendezvous_commands.node_command(
        cluster, cluster.spec.launcher, first_rank_listens=_listens_on_first_node(cluster.spec)
    )


def environment(cluster: Cluster) -> Mapping[str, str]:
    """Nothing more."""
    return {}


def ports(cluster: Cluster) -> tuple[PlannedPort, ...]:
    """None."""
    return ()


def _listens_on_first_node(spec: ClusterSpec) -> bool:
    """A bare process (`env`) and a script that listens on MASTER_ADDR (`--master node-0`) bring their own store."""
    return spec.launcher == "env" or spec.master == "node-0"
