"""Who brings the nodes together? This process: it accepts their connections and performs what the rendezvous decides."""

from __future__ import annotations

import argparse
import os
import selectors
import socket
import subprocess
import time
from functools import partial

from ..shared import roles
from ..shared.decisions import Act
from ..shared.event_log import EventLog
from .rendezvous import OpenStore, Rendezvous
from .server import Nodes, PortTaken, free_port, interface_of, listen, marked, serve


class Master(Nodes):
    """The sockets around a rendezvous, with the stores of its rounds."""

    def __init__(self, rendezvous: Rendezvous, listener: socket.socket, stores: Stores, events: EventLog) -> None:
        """Listen on `listener`; the rendezvous decides, `stores` makes the rounds' stores."""
        super().__init__(rendezvous, listener, events)
        self._rendezvous, self._stores = rendezvous, stores

    def _perform_own(self, act: Act) -> None:
        assert isinstance(act, OpenStore)
        descriptor = self._stores.ask()
        if descriptor is None:
            host, port = self._stores.opened()
            self._perform(self._rendezvous.store_opened(host, port, time.monotonic()))
        else:
            self._selector.register(descriptor, selectors.EVENT_READ, self._store_opened)

    def _store_opened(self) -> None:
        self._selector.unregister(self._stores.answers)
        host, port = self._stores.opened()
        self._perform(self._rendezvous.store_opened(host, port, time.monotonic()))


class Stores:
    """The process that serves the stores (store), or, without a `host`, only free ports for a first rank that listens itself."""

    def __init__(self, host: str | None, port: int, interface: str) -> None:
        """The first store shall listen on `port`, later ones on any; all on the network interface with that address, "" for all."""
        self._host, self._port, self._interface = host, port, interface
        self._process: subprocess.Popen[str] | None = None
        self._command = roles.command("store")

    @property
    def answers(self) -> int:
        """The descriptor on which an answer arrives."""
        assert self._process is not None
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def ask(self) -> int | None:
        """Begin to open a store. The descriptor on which the answer will arrive; None where there is nothing to wait for."""
        if self._host is None:
            return None
        if self._process is None:
            self._start(*self._command)
        self._write()
        return self.answers

    def opened(self) -> tuple[str | None, int]:
        """
        The address of the store asked for.

        Raises:
            PortTaken: its port is.
            RuntimeError: torch cannot serve one; in words.
        """
        if self._host is None:
            return None, self._port or free_port(self._interface)
        answer = self._answer()
        if not answer:  # it died: torch's C extension does not stand alone here
            self._start(*self._command, "--whole")
            self._write()
            answer = self._answer()
        if answer == "taken":
            raise PortTaken(self._port)
        if not answer.isdigit():
            raise RuntimeError(f"no TCPStore on port {self._port}: {answer or 'see the messages of the store above'}")
        self._port = 0  # the next round's store listens elsewhere: ranks of this one may still be reading
        return self._host, int(answer)

    def close(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait()

    def _start(self, *command: str) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

    def _write(self) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(f"open {self._interface or '0.0.0.0'} {self._port}\n")

    def _answer(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="master", description="The rendezvous master of one run.")
    parser.add_argument(
        "--nodes", type=int, required=True, help="nodes of the first round, and of all where it is not elastic"
    )
    parser.add_argument("--min-nodes", type=int, help="elastic: go on with those that are left, if so many are")
    parser.add_argument("--max-restarts", type=int, default=0)
    parser.add_argument("--port", type=int, required=True, help="where nodes connect; 0: any free port")
    parser.add_argument("--store-host", default="master", help="the name under which ranks reach the store")
    parser.add_argument("--store-port", type=int, default=0)
    parser.add_argument("--no-store", action="store_true", help="the first rank listens itself, on the store's port")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Serve one run; the exit code."""
    options = _options(arguments)
    events = EventLog.from_environment({"COMPOSESIM_NODE": "master", **os.environ})
    interface = interface_of(options.store_host)
    rendezvous = Rendezvous(
        nodes=options.nodes,
        max_restarts=options.max_restarts,
        min_nodes=options.min_nodes,
        absent=partial(marked, events.folder / "orders" / "absent"),
    )
    stores = Stores(None if options.no_store else options.store_host, options.store_port, interface)
    try:
        return serve(lambda: Master(rendezvous, listen(interface, options.port), stores, events), rendezvous, events)
    finally:
        stores.close()
