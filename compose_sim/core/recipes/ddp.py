"""How does a torch.distributed script start on a node? Through composesim's own launcher, which asks the master for its place."""

from __future__ import annotations

from compose_sim.core.spec import ClusterSpec


def master_command(
    spec: ClusterSpec, *, python: str, folder: str, host: str, port: int, store_port: int
) -> tuple[str, ...]:
    """The rendezvous master; it serves a TCPStore only where ranks are told to connect to it."""
    # A bare process (`env`) and a script that listens on MASTER_ADDR (`--master node-0`) bring their own store.
    serves_store = spec.launcher != "env" and spec.master == "service"
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
    listens_on_first_node = spec.launcher == "env" or spec.master == "node-0"
    return (
        python,
        f"{folder}/node/launch.py",
        *("--launcher", spec.launcher),
        *(("--master-address", first_node) if listens_on_first_node else ()),
        *(("--module",) if is_module else ()),
        "--",
        target,
        *arguments,
    )
