"""How do master and nodes start where one program drives them all? The command lines that such recipes share.

The master (node/head.py) starts the driver, tells it which nodes are there, and ends the run when it ends. Nodes start the
framework's own process when the driver accepts them.
"""

from __future__ import annotations

from compose_sim.core.recipes import Cluster


def of_ours(cluster: Cluster, file: str) -> str:
    """A file of node/, as nodes and the master see it."""
    return f"{cluster.folder}/node/{file}"


def master_command(cluster: Cluster, driver: tuple[str, ...]) -> tuple[str, ...]:
    """The head; after `--` the driver: what stands behind `python`, then after another `--` the person's program."""
    spec, program = cluster.spec, cluster.program
    slots = (node.nproc_per_node or spec.nproc_per_node for node in spec.node_specs)
    return (
        cluster.python,
        of_ours(cluster, "head.py"),
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
        *(cluster.python, of_ours(cluster, "launch.py")),
        *("--launcher", launcher),
        *("--", *words),
    )
