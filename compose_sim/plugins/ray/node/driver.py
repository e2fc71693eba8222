"""Start the head of a Ray cluster, and run the user's script there once Ray has all nodes.

Arguments of the role `ray-driver`: --nodes N --cpus N --ready-timeout SECONDS --client-port PORT [--dashboard-port PORT]
--shm BYTES --share NODES [--free-ports] -- [-m] SCRIPT ARGS...
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any

from ....node.master.driver_membership import (
    NOT_READY,
    UNREACHABLE,
    MasterConnection,
    StartError,
    exit_like,
    fail,
    run_script,
    seconds_until,
)
from ....node.master.server import PortTaken, free_port, listen
from ....node.shared.roles import add_passthrough
from . import start

_POLL_S = 0.1
_RETURN_S = 10.0  # how long a node that is lost before all are registered may take to return


def main(arguments: list[str]) -> None:
    """Start the head, wait for the nodes, run the script, and exit as it does."""
    options = _options(arguments)
    try:
        version = start.require_ray()
    except StartError as error:
        fail(error.code, str(error), error.hint)
    master = MasterConnection()
    master.accept()  # nodes import Ray while the head starts, and wait for it
    address = _start_head(options)
    nodes = _wait_for_nodes(master, address, options)
    cpus, gpus = (sum(node.get(name, 0.0) for node in nodes.values()) for name in ("CPU", "GPU"))
    words = f"{len(nodes)} nodes, {cpus:g} CPUs" + (f", {gpus:g} GPUs" if gpus else "")
    master.ready(words=words, nodes=len(nodes), cpus=cpus, gpus=gpus, version=version)
    exit_like(run_script(options.program, {"RAY_ADDRESS": address}))


def _start_head(options: argparse.Namespace) -> str:
    """Start Ray's head in separate processes, and return the address for clients."""
    shared, port = options.free_ports, int(os.environ["MASTER_PORT"])
    host = "127.0.0.1" if shared else start.own_address()
    arguments = [
        "--head",
        f"--port={port}",
        "--node-name=head",
        *(() if shared else (f"--node-ip-address={host}",)),
        f"--num-cpus={options.cpus}",
        "--num-gpus=0",
        "--memory=0",  # like the CPUs: work is done on nodes
        f"--object-store-memory={start.object_store_of(start.memory_of(0, options.share + 1), options.shm)}",
        f"--ray-client-server-port={options.client_port}",
        f"--include-dashboard={'true' if options.dashboard_port else 'false'}",
        f"--dashboard-port={options.dashboard_port or free_port('')}",
        f"--dashboard-host={'127.0.0.1' if shared else '0.0.0.0'}",
        "--disable-usage-stats",
        *start.port_arguments(free=shared),
    ]
    _require_free({"dashboard": options.dashboard_port, "client": options.client_port})
    log = None
    try:
        listen("", port).close()
        folder = start.make_folder("head", shared=shared)
        log = folder / "start.log"
        with start.stdout_to(log):
            start.start(arguments, folder)
    except PortTaken as error:
        hint = f"composesim up without --master-port, or ss -ltnp 'sport = :{port}' to see which process uses it"
        fail(UNREACHABLE, f"Ray's head cannot listen on port {port} of {host}: {error}", hint)
    except start.RayError as error:
        print(start.last_lines(log) if log else "", file=sys.stderr)
        fail(UNREACHABLE, f"Ray's head did not start at {host}:{port}: {error}")
    return f"{host}:{port}"


def _require_free(ports: dict[str, int | None]) -> None:
    """End the driver if another process has taken a published port since the run was planned; Ray's error suggests Ray's options."""
    for name, port in ports.items():
        if not port:  # no dashboard
            continue
        try:
            listen("", port).close()
        except PortTaken as error:
            fail(UNREACHABLE, f"Ray's {name} cannot listen: {error}", f"composesim up --publish {name}={port + 1} …")


def _wait_for_nodes(master: MasterConnection, address: str, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return the resources of each node once all have registered with Ray; end the driver if that takes too long."""
    client = start.client_of(address)
    deadline = time.monotonic() + options.ready_timeout
    present_at: dict[str, float] = {}
    while True:
        nodes = _registered(client)
        if len(nodes) >= options.nodes:
            return nodes
        master.update(min(_POLL_S, seconds_until(deadline)))
        now = time.monotonic()
        present = {node.node for node in master.nodes}
        present_at.update({node: now for node in master.seen if node in present or node not in present_at})
        gone = [node for node, at in present_at.items() if now - at > _RETURN_S]
        if now >= deadline or gone:
            _give_up(nodes, options, gone)


def _give_up(nodes: dict[str, Any], options: argparse.Namespace, gone: list[str]) -> None:
    missing = [f"node-{number}" for number in range(options.nodes) if f"node-{number}" not in nodes]
    why = f"{', '.join(gone)} ended before" if gone else f"timed out after {options.ready_timeout} s"
    fail(
        NOT_READY,
        f"{len(nodes)} of {options.nodes} nodes have registered with Ray, {', '.join(missing)} not: {why}",
        f"composesim logs --run {os.environ['COMPOSESIM_RUN']} --node {missing[0] if missing else 'node-0'}",
    )


def _registered(client: Any) -> dict[str, dict[str, float]]:
    """Return the resources of each node that Ray lists as alive, except the head, by composesim's name for it."""
    alive = start.nodes_of(client)
    return {node.node_name: dict(node.resources_total) for node in alive if not node.is_head_node}


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="ray-driver", description="The head of a Ray cluster, and its script.")
    parser.add_argument("--nodes", type=int, required=True, help="number of nodes to wait for before the script starts")
    parser.add_argument("--cpus", type=int, required=True, help="CPUs of the head")
    parser.add_argument("--ready-timeout", type=int, required=True, help="seconds to wait for all nodes")
    parser.add_argument("--client-port", type=int, required=True, help="port of Ray's client")
    parser.add_argument("--dashboard-port", type=int, help="port of the dashboard; default: no dashboard")
    start.add_options(parser)
    add_passthrough(parser, "program", help="-- and the user's program")
    return parser.parse_args(arguments)
