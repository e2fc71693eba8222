"""Build the command lines of recipes in which one program, the driver, controls all nodes.

The master (`node/master/driver_master.py`) starts the driver, reports the nodes that have joined, and ends the run when the driver
ends. A node starts the framework's own process when the driver accepts it.
"""

from __future__ import annotations

from compose_sim.core.plan.model import Program
from compose_sim.core.plan.node_roles import role_command
from compose_sim.core.plan.recipes import ClusterLayout
from compose_sim.core.request.spec import ClusterSpec


def master_command(cluster: ClusterLayout, driver: tuple[str, ...]) -> tuple[str, ...]:
    """Start the master; after `--` follow the driver (the arguments of `python`), another `--`, and the user's program."""
    return (
        cluster.python,
        *role_command(cluster.folder, "driver-master"),
        *("--slots", ",".join(map(str, slots_of(cluster.spec)))),
        *("--host", cluster.host),
        *("--port", str(cluster.port)),
        *("--head-port", str(cluster.store_port)),
        *(("--node-timeout", f"{cluster.spec.node_timeout:g}") if cluster.spec.node_timeout else ()),
        "--",
        *(*driver, "--"),
        *program_arguments(cluster.program),
    )


def node_command(cluster: ClusterLayout, launcher: str, arguments: tuple[str, ...]) -> tuple[str, ...]:
    """Start the node's agent, which starts `arguments` when the driver accepts nodes."""
    return (
        *(cluster.python, *role_command(cluster.folder, "agent")),
        *("--launcher", launcher),
        *("--", *arguments),
    )


def slots_of(spec: ClusterSpec) -> list[int]:
    """Return the number of ranks on each node."""
    return [node.nproc_per_node or spec.nproc_per_node for node in spec.node_specs]


def program_arguments(program: Program) -> tuple[str, ...]:
    """Return the arguments of `python` that run the user's program."""
    return (*(("-m",) if program.is_module else ()), program.target, *program.arguments)
