"""How does a torch.distributed script start on a node? Through composesim's own launcher, which asks the master for its place."""

from __future__ import annotations

from compose_sim.core.recipes import rounds
from compose_sim.core.spec import ClusterSpec

EMULATES_GPUS = True


def launcher(spec: ClusterSpec) -> str:
    """As the person asked."""
    return spec.launcher


def master_command(
    spec: ClusterSpec, *, python: str, folder: str, host: str, port: int, store_port: int
) -> tuple[str, ...]:
    """The master of the rounds."""
    return rounds.master_command(
        spec,
        serves_store=not _listens_on_first_node(spec),
        python=python,
        folder=folder,
        host=host,
        port=port,
        store_port=store_port,
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
    """The node's agent, then after `--` what each rank runs."""
    return rounds.node_command(
        spec.launcher,
        (target, *arguments),
        python=python,
        folder=folder,
        first_node=first_node if _listens_on_first_node(spec) else "",
        is_module=is_module,
    )


def _listens_on_first_node(spec: ClusterSpec) -> bool:
    """A bare process (`env`) and a script that listens on MASTER_ADDR (`--master node-0`) bring their own store."""
    return spec.launcher == "env" or spec.master == "node-0"
