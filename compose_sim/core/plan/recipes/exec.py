"""How does any command start on every node? As it is, with the names of all nodes in its environment and in a host file.

MPI, DeepSpeed, JAX and others start from there: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set as for torch.distributed, and
nobody listens at MASTER_PORT but whom the command itself makes listen there, on the first node.
"""

from __future__ import annotations

from collections.abc import Mapping

from compose_sim.core.plan.model import PlannedPort
from compose_sim.core.plan.recipes import Cluster, rendezvous_commands
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.errors import SpecError

EMULATES_GPUS = False  # the emulation lives in the Python that our own launcher starts
RUNS_COMMANDS = True
DRIVEN = False
PACKAGES: Mapping[str, str] = {}
EXAMPLE = ""
OPTIONS: Mapping[str, str] = {}
EXIT_CODES: Mapping[int, str] = {}


def launcher(spec: ClusterSpec) -> str:
    """`command`; SpecError where another one was asked for."""
    if "launcher" in spec.model_fields_set:
        raise SpecError(
            f"launcher '{spec.launcher}' starts Python scripts, and recipe 'exec' runs commands as they are",
            hint="leave --launcher out, or run a script by the recipe 'ddp'",
        )
    return "command"


def master_command(cluster: Cluster) -> tuple[str, ...]:
    """The master of the rounds, without a store: a command brings its own."""
    return rendezvous_commands.master_command(cluster, serves_store=False)


def node_command(cluster: Cluster) -> tuple[str, ...]:
    """The node's agent, then after `--` the command."""
    return rendezvous_commands.node_command(cluster, launcher(cluster.spec), first_rank_listens=True)


def environment(cluster: Cluster) -> Mapping[str, str]:
    """Nothing more."""
    return {}


def ports(cluster: Cluster) -> tuple[PlannedPort, ...]:
    """None."""
    return ()
