"""Build the command lines of recipes in which one program, the driver, controls all nodes.

The master (`node/master/driver_master.py`) starts the driver, reports the nodes that have joined, and ends the run when the driver
ends. A node starts the framework's own process when the driver accepts it.
"""

from __future__ import annotations

from compose_sim.core.plan.node_roles import role_words
from compose_sim.core.plan.recipes import Cluster


def master_command(cluster: Cluster, driver: tuple[str, ...]) -> tuple[str, ...]:
    """The head; after `--` the driver: what stands behind `python`, then after another `--` the person's program."""
    spec, program = cluster.spec, cluster.program
    slots = (node.nproc_per_node or spec.nproc_per_node for node in spec.node_specs)
    return (
        cluster.python,
        *role_words(cluster.folder, "driver-master"),
        *("--slots", ",".join(map(str, slots))),
        *("--host", cluster.host),
        *("--port", str(cluster.port)),
        *("--head-port", str(cluster.store_port)),
        "--",
        *(*driver, "--"),
        *(("-m",) if program.is_module else ()),
        *(program.target, *program.arguments),
    )


def node_command(cluster: Cluster, launcher: str, words: tuple[str, ...]) -> tuple[str, ...]:
    """The node's agent, then after `--` what it runs once the driver accepts nodes: `command` runs the words as they are."""
    return (
        *(cluster.python, *role_words(cluster.folder, "agent")),
        *("--launcher", launcher),
        *("--", *words),
    )
