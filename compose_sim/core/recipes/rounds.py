"""How do master and agents start where nodes meet in rounds, whatever a rank runs? The command lines that such recipes share."""

from __future__ import annotations

from compose_sim.core.spec import ClusterSpec


def master_command(
    spec: ClusterSpec, *, serves_store: bool, python: str, folder: str, host: str, port: int, store_port: int
) -> tuple[str, ...]:
    """The rendezvous master; it serves a TCPStore only where ranks are told to connect to it."""
    return (
        python,
        f"{folder}/node/master.py",
        *("--nodes", str(spec.first_nodes)),
        *(("--min-nodes", str(spec.elastic_range[0])) if spec.elastic_range else ()),
        *("--max-restarts", str(spec.max_restarts)),
        *("--port", str(port)),
        *("--store-host", host),
        *("--store-port", str(store_port)),
        *(() if serves_store else ("--no-store",)),
    )


def node_command(
    launcher: str, words: tuple[str, ...], *, python: str, folder: str, first_node: str, is_module: bool = False
) -> tuple[str, ...]:
    """The node's agent, then after `--` what each rank runs; `first_node` is where the first rank listens, if not at its name."""
    return (
        python,
        f"{folder}/node/launch.py",
        *("--launcher", launcher),
        *(("--master-address", first_node) if first_node else ()),
        *(("--module",) if is_module else ()),
        "--",
        *words,
    )
