"""How do master and agents start where nodes meet in rounds, whatever a rank runs? The command lines that such recipes share."""

from __future__ import annotations

from compose_sim.core.plan.node_roles import role_words
from compose_sim.core.plan.recipes import Cluster


def master_command(cluster: Cluster, *, serves_store: bool) -> tuple[str, ...]:
    """The rendezvous master; it serves a TCPStore only where ranks are told to connect to it."""
    spec = cluster.spec
    return (
        cluster.python,
        *role_words(cluster.folder, "master"),
        *("--nodes", str(spec.initial_node_count)),
        *(("--min-nodes", str(spec.elastic_range[0])) if spec.elastic_range else ()),
        *("--max-restarts", str(spec.max_restarts)),
        *("--port", str(cluster.port)),
        *("--store-host", cluster.host),
        *("--store-port", str(cluster.store_port)),
        *(() if serves_store else ("--no-store",)),
    )


def node_command(cluster: Cluster, launcher: str, *, first_rank_listens: bool) -> tuple[str, ...]:
    """The node's agent, then after `--` what each rank runs."""
    program = cluster.program
    # In containers the first node of each round is reached by its name: node-0 may be gone.
    listens_here = first_rank_listens and not cluster.contained
    return (
        cluster.python,
        *role_words(cluster.folder, "agent"),
        *("--launcher", launcher),
        *(("--master-address", "127.0.0.1") if listens_here else ()),
        *(("--module",) if program.is_module else ()),
        "--",
        *(program.target, *program.arguments),
    )
