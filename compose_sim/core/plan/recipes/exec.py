"""Start any command on every node, with the names of all nodes in the environment and in a host file.

RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set as for torch.distributed. Nothing listens at MASTER_PORT until the command
itself does so on the first node. MPI, DeepSpeed, JAX and others can start from there.
"""

from __future__ import annotations

from collections.abc import Mapping

from compose_sim.core.plan.recipes import (
    ClusterLayout,
    Contents,
    no_environment,
    no_ports,
    refuse_launcher,
    rendezvous_commands,
)
from compose_sim.core.request.spec import ClusterSpec

EMULATES_GPUS = False  # GPUs are emulated in the Python that composesim's launchers start
RUNS_COMMANDS = True
DRIVEN = False
PACKAGES: Mapping[str, str] = {}
EXAMPLE = ""
IMAGE = Contents()
OPTIONS: Mapping[str, str] = {}
EXIT_CODES: Mapping[int, str] = {}

environment, ports = no_environment, no_ports


def launcher(spec: ClusterSpec) -> str:
    """Return `command`; raise SpecError if the user chose another launcher."""
    refuse_launcher(
        spec, "it runs commands unchanged", hint="leave --launcher out, or run a script with the recipe 'ddp'"
    )
    return "command"


def master_command(cluster: ClusterLayout) -> tuple[str, ...]:
    """Start the rendezvous master without a store."""
    return rendezvous_commands.master_command(cluster, serves_store=False)


def node_command(cluster: ClusterLayout) -> tuple[str, ...]:
    """Start the node's agent; after `--` follows the command."""
    return rendezvous_commands.node_command(cluster, launcher(cluster.spec), first_rank_listens=True)
