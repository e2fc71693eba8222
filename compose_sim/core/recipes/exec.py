"""How does any command start on every node? As it is, with the names of all nodes in its environment and in a host file.

MPI, DeepSpeed, JAX and others start from there: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set as for torch.distributed, and
nobody listens at MASTER_PORT but whom the command itself makes listen there, on the first node.
"""

from __future__ import annotations

from compose_sim.core.recipes import rounds
from compose_sim.core.spec import ClusterSpec
from compose_sim.errors import SpecError

EMULATES_GPUS = False  # the emulation lives in the Python that our own launcher starts


def launcher(spec: ClusterSpec) -> str:
    """`command`; SpecError where another one was asked for."""
    if "launcher" in spec.model_fields_set:
        raise SpecError(
            f"launcher '{spec.launcher}' starts Python scripts, and recipe 'exec' runs commands as they are",
            hint="leave --launcher out, or run a script by the recipe 'ddp'",
        )
    return "command"


def master_command(
    spec: ClusterSpec, *, python: str, folder: str, host: str, port: int, store_port: int
) -> tuple[str, ...]:
    """The master of the rounds, without a store: a command brings its own."""
    return rounds.master_command(
        spec, serves_store=False, python=python, folder=folder, host=host, port=port, store_port=store_port
    )


def node_command(
    spec: ClusterSpec,
    *,
    python: str,
    folder: str,
    target: str,
    is_module: bool,
    arguments: tuple[str, ...],
    first_node: str,
) -> tuple[str, ...]:
    """The node's agent, then after `--` the command."""
    words = (target, *arguments)
    return rounds.node_command(launcher(spec), words, python=python, folder=folder, first_node=first_node)
