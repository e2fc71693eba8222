"""Run the rendezvous of one run: accept the nodes' connections, and open a store for each round.

Arguments of the role `master`: --nodes N --port PORT [--min-nodes N] [--max-restarts N] [--node-timeout S] [--store-host NAME]
[--store-port PORT] [--no-store]
"""

from __future__ import annotations

import argparse
import os
import selectors
import socket
import subprocess
from functools import partial

from ..shared import roles
from ..shared.event_log import EventLog
from .coordinator import Action
from .rendezvous import OpenStore, Rendezvous
from .server import NodeServer, PortTaken, absent_nodes, free_port, interface_of, listen, serve


class RendezvousMaster(NodeServer):
    """The sockets of a rendezvous, and the stores of all rounds."""

    def __init__(self, rendezvous: Rendezvous, listener: socket.socket, stores: StoreProcess, events: EventLog) -> None:
        """Listen on `listener`."""
        super().__init__(rendezvous, listener, events)
        self._rendezvous, self._stores = rendezvous, stores

    def _perform_other(self, action: Action) -> None:
        assert isinstance(action, OpenStore)
        descriptor = self._stores.request()
        if descriptor is None:
            self._perform(self._rendezvous.store_opened(*self._stores.address()))
        else:
            self._selector.register(descriptor, selectors.EVENT_READ, partial(self._store_opened, descriptor))

    def _store_opened(self, descriptor: int) -> None:
        self._selector.unregister(descriptor)
        self._perform(self._rendezvous.store_opened(*self._stores.address()))


class StoreProcess:
    """The process that serves the stores (the role `store`); without a `host`, only free ports for rank 0 to listen on."""

    def __init__(self, host: str | None, port: int, interface: str) -> None:
        """Open the first store on `port` and later ones on any; all listen on the network interface with this address."""
        self._host, self._port, self._interface = host, port, interface
        self._process: subprocess.Popen[str] | None = None

    def request(self) -> int | None:
        """Start to open a store, and return the descriptor that the answer arrives on; None if there is nothing to wait for."""
        if self._host is None:
            return None
        process = self._process or self._start()
        self._write(process)
        assert process.stdout is not None
        return process.stdout.fileno()

    def address(self) -> tuple[str | None, int]:
        """
        Return the address of the requested store.

        Raises:
            PortTaken: another process listens on the port.
            RuntimeError: torch cannot serve a store.
        """
        if self._host is None:
            return None, self._port or free_port(self._interface)
        assert self._process is not None
        answer = self._read(self._process)
        if not answer:  # it crashed: this torch's C extension does not work without torch's Python code
            process = self._start("--whole")
            self._write(process)
            answer = self._read(process)
        if answer == "taken":
            raise PortTaken(self._port)
        if not answer.isdecimal():
            why = answer.removeprefix("error ") or "the store's own messages are above"
            raise RuntimeError(f"torch cannot serve a TCPStore on port {self._port}: {why}")
        self._port = 0  # the next round's store listens elsewhere, because ranks of this round may still use this one
        return self._host, int(answer)

    def close(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()

    def _start(self, *arguments: str) -> subprocess.Popen[str]:
        command = roles.command("store", *arguments)
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        return self._process

    def _write(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        process.stdin.write(f"open {self._interface or '0.0.0.0'} {self._port}\n")

    @staticmethod
    def _read(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        return process.stdout.readline().strip()


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="master", description="The rendezvous master of one run.")
    parser.add_argument(
        "--nodes", type=int, required=True, help="nodes in the first round; in every round, unless --min-nodes is given"
    )
    parser.add_argument("--min-nodes", type=int, help="elastic: continue as long as this many nodes are left")
    parser.add_argument("--max-restarts", type=int, default=0)
    parser.add_argument("--node-timeout", type=float, help="seconds of silence after which a node is lost")
    parser.add_argument("--port", type=int, required=True, help="port for the nodes; 0: any free port")
    parser.add_argument("--store-host", default="master", help="the name under which ranks reach the store")
    parser.add_argument("--store-port", type=int, default=0)
    parser.add_argument("--no-store", action="store_true", help="rank 0 listens on the store's port itself")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Serve one run, and return the exit code."""
    options = _options(arguments)
    events = EventLog.from_environment({"COMPOSESIM_NODE": "master", **os.environ})
    interface = interface_of(options.store_host)
    rendezvous = Rendezvous(
        nodes=options.nodes,
        max_restarts=options.max_restarts,
        min_nodes=options.min_nodes,
        absent=partial(absent_nodes, events.folder),
        node_timeout=options.node_timeout,
    )
    stores = StoreProcess(None if options.no_store else options.store_host, options.store_port, interface)
    try:
        return serve(
            lambda: RendezvousMaster(rendezvous, listen(interface, options.port), stores, events), rendezvous, events
        )
    finally:
        stores.close()
