"""What drives a Ray cluster? Its head, which this program starts; when Ray has all nodes, the person's script, on the head.

ray_driver.py --nodes N --cpus 0 --client-port PORT [--dashboard-port PORT] OPTIONS -- [-m] SCRIPT ARGS...
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any

from ...master.driver_api import NOT_READY, UNREACHABLE, Link, before, end_as, fail, run_script
from ...master.server import PortTaken, free_port, listen
from ...shared.installed import Unfit
from ...shared.passthrough_args import add_words
from . import start

_LOOK_S = 0.1  # between two questions to Ray
_BACK_S = 10.0  # how long a node that left before all were there may take to come back


def main(arguments: list[str]) -> None:
    """Start the head, wait for the nodes, run the script, end as it ends."""
    options = _options(arguments)
    try:
        version = start.check_ray()
    except Unfit as problem:
        hint = "composesim image build --recipe ray, or composesim up --python /path/to/python …"
        fail(problem.code, str(problem), hint)
    link = Link()
    link.accept()  # nodes import Ray while the head starts, and wait for it
    address = _start_head(options)
    nodes = _await_nodes(link, address, options)
    cpus, gpus = (sum(node.get(name, 0.0) for node in nodes.values()) for name in ("CPU", "GPU"))
    words = f"{len(nodes)} nodes, {cpus:g} CPUs" + (f", {gpus:g} GPUs" if gpus else "")
    link.ready(words=words, nodes=len(nodes), cpus=cpus, gpus=gpus, version=version)
    end_as(run_script(options.program, {"RAY_ADDRESS": address}))


def _start_head(options: argparse.Namespace) -> str:
    """Ray's head, in processes of its own; the address that clients take."""
    shared, port = options.free_ports, int(os.environ["MASTER_PORT"])
    host = "127.0.0.1" if shared else start.own_address()
    words = [
        "--head",
        f"--port={port}",
        "--node-name=head",
        *(() if shared else (f"--node-ip-address={host}",)),
        f"--num-cpus={options.cpus}",
        "--num-gpus=0",
        "--memory=0",  # like its CPUs: work is done on nodes
        f"--object-store-memory={start.object_store_of(start.memory_of(0, options.share + 1), options.shm)}",
        f"--ray-client-server-port={options.client_port}",
        f"--include-dashboard={'true' if options.dashboard_port else 'false'}",
        f"--dashboard-port={options.dashboard_port or free_port('')}",
        f"--dashboard-host={'127.0.0.1' if shared else '0.0.0.0'}",
        "--disable-usage-stats",
        *start.port_words(free=shared),
    ]
    said = None
    try:
        listen("", port).close()
        folder = start.make_folder("head", shared=shared)
        said = folder / "start.log"
        with start.said_to(said):
            start.start(words, folder)
    except PortTaken as taken:
        hint = f"leave --master-port out, or see who it is: ss -ltnp 'sport = :{port}'"
        fail(UNREACHABLE, f"Ray's head cannot listen on port {port} of {host}: {taken}", hint)
    except start.Failed as problem:
        print(start.last_words(said) if said else "", file=sys.stderr)
        fail(UNREACHABLE, f"Ray's head did not start at {host}:{port}: {problem}")
    return f"{host}:{port}"


def _await_nodes(link: Link, address: str, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """The resources of each node, once Ray itself has as many as were started; else the end."""
    client = start.client_of(address)
    deadline = time.monotonic() + options.ready_timeout
    last_there: dict[str, float] = {}
    while True:
        nodes = _registered(client)
        if len(nodes) >= options.nodes:
            return nodes
        link.hear(min(_LOOK_S, before(deadline)))
        now = time.monotonic()
        there = {node.node for node in link.nodes}
        last_there.update({node: now for node in link.known if node in there or node not in last_there})
        gone = [node for node, last in last_there.items() if now - last > _BACK_S]
        if now >= deadline or gone:
            _give_up(nodes, options, gone)


def _give_up(nodes: dict[str, Any], options: argparse.Namespace, gone: list[str]) -> None:
    missing = [f"node-{number}" for number in range(options.nodes) if f"node-{number}" not in nodes]
    why = f"{', '.join(gone)} ended before that" if gone else f"{options.ready_timeout} s have passed"
    fail(
        NOT_READY,
        f"{len(nodes)} of {options.nodes} nodes registered with Ray, without {', '.join(missing)}: {why}",
        f"composesim logs --run {os.environ['COMPOSESIM_RUN']} --node {missing[0] if missing else 'node-0'}",
    )


def _registered(client: Any) -> dict[str, dict[str, float]]:
    """What Ray has: the resources of each node that is alive, by our name for it, without the head."""
    alive = start.nodes_of(client)
    return {node.node_name: dict(node.resources_total) for node in alive if not node.is_head_node}


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="ray-driver", description="The head of a Ray cluster, and its script.")
    parser.add_argument("--nodes", type=int, required=True, help="nodes that are to be there before the script begins")
    parser.add_argument("--cpus", type=int, required=True, help="CPUs of the head")
    parser.add_argument("--ready-timeout", type=int, required=True, help="seconds until all nodes must be there")
    parser.add_argument("--client-port", type=int, required=True, help="port of Ray's client")
    parser.add_argument("--dashboard-port", type=int, help="port of the dashboard; left out: none")
    start.add_options(parser)
    add_words(parser, "program", help="-- and the person's program")
    return parser.parse_args(arguments)
