"""Run a driver, the program that controls all nodes: report the nodes to it, and end the run when the driver ends.

Arguments of the role `driver-master`: --slots 1,1 --host NAME --port PORT --head-port PORT [--node-timeout S] -- DRIVER ARGS...
"""

from __future__ import annotations

import argparse
import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
from functools import partial

from ..shared.event_log import EventLog
from ..shared.master_protocol import CLOSED, Connection
from ..shared.rank_logs import RankLogs
from ..shared.roles import add_passthrough
from .coordinator import Action
from .driver_membership import NODE, SOCKET, DriverMembership, SendDriver, StartDriver
from .server import NodeServer, absent_nodes, free_port, interface_of, listen, serve

_GRACE_SECONDS = 5.0
_FLUSH_SECONDS = 5.0


class DriverMaster(NodeServer):
    """The sockets of all nodes, and the driver's process, connection and output."""

    def __init__(
        self, membership: DriverMembership, listener: socket.socket, driver: list[str], events: EventLog
    ) -> None:
        """Listen on `listener`; `driver` is the driver's command line after `python`."""
        super().__init__(membership, listener, events)
        self._membership, self._arguments = membership, driver
        self._process: subprocess.Popen[bytes] | None = None
        self._driver: Connection | None = None
        echo = os.environ.get("COMPOSESIM_ECHO", "1") != "0"
        self._logs = RankLogs(events.folder / "logs", NODE, self._selector, echo=echo)

    def close(self) -> None:
        """End the driver with everything it started, and write all of its output."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        self._logs.finish(_FLUSH_SECONDS)

    def _perform_other(self, action: Action) -> None:
        if isinstance(action, StartDriver):
            self._start()
        elif isinstance(action, SendDriver) and self._driver is not None:
            self._driver.send(action.message)

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        output = self._logs.open(0)
        environment = {
            **os.environ,
            SOCKET: str(theirs.fileno()),
            "COMPOSESIM_NODE": NODE,
            "MASTER_ADDR": self._membership.host,
            "MASTER_PORT": str(self._membership.head_port),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-u", *self._arguments],
            env=environment,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # so that everything it starts can be killed with it
        )
        theirs.close()
        os.close(output)
        self._driver = Connection(ours)
        self._selector.register(self._driver, selectors.EVENT_READ, self._read_driver)
        handle = os.pidfd_open(self._process.pid)
        self._selector.register(handle, selectors.EVENT_READ, partial(self._driver_ended, handle, self._process))

    def _read_driver(self) -> None:
        assert self._driver is not None
        for message in self._driver.receive():
            try:
                actions = self._membership.driver_sent(message)
            except ValueError:
                self._driver.reject(message)
                break
            self._perform(actions)
        if self._driver.closed:  # the end of the process is reported separately
            if self._driver.closed != CLOSED:
                print(f"composesim master: lost the connection to the driver: {self._driver.closed}", file=sys.stderr)
            self._selector.unregister(self._driver)
            self._driver.close()
            self._driver = None

    def _driver_ended(self, handle: int, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        self._selector.unregister(handle)
        os.close(handle)
        self._logs.drain(0)
        self._perform(self._membership.driver_ended(code))


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="driver-master", description="The master of a run that a driver controls.")
    parser.add_argument("--slots", required=True, help="ranks of each node that may take part, such as 1,1,2")
    parser.add_argument("--host", required=True, help="the name under which nodes reach this process")
    parser.add_argument("--port", type=int, required=True, help="port for the nodes; 0: any free port")
    parser.add_argument("--head-port", type=int, required=True, help="port for the framework's head; 0: any free port")
    parser.add_argument("--node-timeout", type=float, help="seconds of silence after which a node is lost")
    add_passthrough(parser, "driver", help="-- and the driver's command line after `python`")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Serve one run, and return the exit code."""
    options = _options(arguments)
    events = EventLog.from_environment({"COMPOSESIM_NODE": "master", **os.environ})
    interface = interface_of(options.host)
    membership = DriverMembership(
        slots=[int(count) for count in options.slots.split(",")],
        host=options.host,
        head_port=options.head_port or free_port(interface),
        absent=partial(absent_nodes, events.folder),
        node_timeout=options.node_timeout,
    )
    with contextlib.ExitStack() as stack:

        def make_server() -> DriverMaster:
            master = DriverMaster(membership, listen(interface, options.port), options.driver, events)
            stack.callback(master.close)
            return master

        return serve(make_server, membership, events)
