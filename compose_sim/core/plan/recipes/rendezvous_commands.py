"""Build the command lines of recipes whose nodes meet in rounds."""

from __future__ import annotations

from compose_sim.core.plan.node_roles import role_command
from compose_sim.core.plan.recipes import ClusterLayout


def master_command(cluster: ClusterLayout, *, serves_store: bool) -> tuple[str, ...]:
    """Start the rendezvous master; `serves_store` adds a TCPStore to which ranks connect."""
    spec = cluster.spec
    return (
        cluster.python,
        *role_command(cluster.folder, "master"),
        *("--nodes", str(spec.initial_node_count)),
        *(("--min-nodes", str(spec.elastic_range[0])) if spec.elastic_range else ()),
        *("--max-restarts", str(spec.max_restarts)),
        *(("--node-timeout", f"{spec.node_timeout:g}") if spec.node_timeout else ()),
        *("--port", str(cluster.port)),
        *("--store-host", cluster.host),
        *("--store-port", str(cluster.store_port)),
        *(() if serves_store else ("--no-store",)),
    )


def node_command(cluster: ClusterLayout, launcher: str, *, first_rank_listens: bool) -> tuple[str, ...]:
    """Start the node's agent; after `--` follows the program of each rank."""
    program = cluster.program
    # In containers, the master names the first node of each round: node-0 may be gone.
    listens_here = first_rank_listens and not cluster.contained
    return (
        cluster.python,
        *role_command(cluster.folder, "agent"),
        *("--launcher", launcher),
        *(("--master-address", cluster.host) if listens_here else ()),
        *(("--module",) if program.is_module else ()),
        "--",
        *(program.target, *program.arguments),
    )
