"""Start torch.distributed scripts with composesim's launchers."""

from __future__ import annotations

from collections.abc import Mapping

from compose_sim.core.plan.recipes import ClusterLayout, no_environment, no_ports, rendezvous_commands
from compose_sim.core.request.spec import ClusterSpec

EMULATES_GPUS = True
RUNS_COMMANDS = False
DRIVEN = False
PACKAGES: Mapping[str, str] = {"torch": "2.0"}
EXAMPLE = "train_ddp.py"
OPTIONS: Mapping[str, str] = {}
EXIT_CODES: Mapping[int, str] = {}

environment, ports = no_environment, no_ports


def launcher(spec: ClusterSpec) -> str:
    """Return the launcher that the user chose."""
    return spec.launcher


def master_command(cluster: ClusterLayout) -> tuple[str, ...]:
    """Start the rendezvous master, with a store unless a rank opens it."""
    return rendezvous_commands.master_command(cluster, serves_store=not _first_rank_listens(cluster.spec))


def node_command(cluster: ClusterLayout) -> tuple[str, ...]:
    """Start the node's agent; after `--` follows the program of each rank."""
    return rendezvous_commands.node_command(
        cluster, cluster.spec.launcher, first_rank_listens=_first_rank_listens(cluster.spec)
    )


def _first_rank_listens(spec: ClusterSpec) -> bool:
    """Return whether the script opens the store at MASTER_ADDR: bare processes do, and those of `--master node-0`."""
    return spec.launcher == "env" or spec.master == "node-0"
