"""Who drives the nodes? A program that this process starts, the driver: it is told which nodes are there, and its end ends the run.

head.py --slots 1,1 --host master --port 29400 --head-port 29500 -- DRIVER WORDS...
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

from ..shared.decisions import Act
from ..shared.event_log import EventLog
from ..shared.master_protocol import OVER, Connection
from ..shared.passthrough_args import add_words
from ..shared.rank_logs import Outputs
from .driver_api import LINK, NODE
from .driver_membership import Gathering, StartDriver, Tell
from .server import Nodes, free_port, interface_of, listen, marked, serve

_GRACE_SECONDS = 5.0
_FLUSH_SECONDS = 5.0


class Head(Nodes):
    """The sockets around a gathering, and the driver: a process, a link to it, and what it prints."""

    def __init__(self, gathering: Gathering, listener: socket.socket, driver: list[str], events: EventLog) -> None:
        """Listen on `listener`; `driver` is the words after `python`."""
        super().__init__(gathering, listener, events)
        self._gathering, self._words = gathering, driver
        self._process: subprocess.Popen[bytes] | None = None
        self._link: Connection | None = None
        echo = os.environ.get("COMPOSESIM_ECHO", "1") != "0"
        self._outputs = Outputs(events.folder / "logs", NODE, self._selector, echo=echo)

    def close(self) -> None:
        """Leave no process of the driver's behind, and none of its words unwritten."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        self._outputs.finish(_FLUSH_SECONDS)

    def _perform_own(self, act: Act) -> None:
        if isinstance(act, StartDriver):
            self._start()
        elif isinstance(act, Tell) and self._link is not None:
            self._link.send(act.message)

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        output = self._outputs.open(0)
        environment = {
            **os.environ,
            LINK: str(theirs.fileno()),
            "COMPOSESIM_NODE": NODE,
            "MASTER_ADDR": self._gathering.host,
            "MASTER_PORT": str(self._gathering.head_port),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-u", *self._words],
            env=environment,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # so that all that it started can be ended with it
        )
        theirs.close()
        os.close(output)
        self._link = Connection(ours)
        self._selector.register(self._link, selectors.EVENT_READ, self._hear_driver)
        self._selector.register(os.pidfd_open(self._process.pid), selectors.EVENT_READ, self._driver_ended)

    def _hear_driver(self) -> None:
        assert self._link is not None
        for message in self._link.receive():
            try:
                acts = self._gathering.driver_said(message)
            except ValueError:
                self._link.closed = f"it does not speak our protocol: {message!r:.80}"
                break
            self._perform(acts)
        if self._link.closed:  # it needs us no more, and its end comes by another way
            if self._link.closed != OVER:
                print(f"composesim master: the driver is heard no more: {self._link.closed}", file=sys.stderr)
            self._selector.unregister(self._link)
            self._link.close()
            self._link = None

    def _driver_ended(self) -> None:
        assert self._process is not None
        code = self._process.wait()
        for key in [key for key in self._selector.get_map().values() if key.data == self._driver_ended]:
            self._selector.unregister(key.fd)
            os.close(key.fd)
        self._outputs.drain(0)
        self._perform(self._gathering.driver_ended(code))


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="driver-master", description="The master of a run that one program drives.")
    parser.add_argument("--slots", required=True, help="ranks of each node that may take part, such as 1,1,2")
    parser.add_argument("--host", required=True, help="the name under which nodes reach this process")
    parser.add_argument("--port", type=int, required=True, help="where nodes connect; 0: any free port")
    parser.add_argument("--head-port", type=int, required=True, help="where the framework's head shall listen; 0: any")
    add_words(parser, "driver", help="-- and the driver's words")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Serve one run; the exit code."""
    options = _options(arguments)
    events = EventLog.from_environment({"COMPOSESIM_NODE": "master", **os.environ})
    interface = interface_of(options.host)
    gathering = Gathering(
        slots=[int(count) for count in options.slots.split(",")],
        host=options.host,
        head_port=options.head_port or free_port(interface),
        absent=partial(marked, events.folder / "orders" / "absent"),
    )
    with contextlib.ExitStack() as left:

        def make() -> Head:
            head = Head(gathering, listen(interface, options.port), options.driver, events)
            left.callback(head.close)
            return head

        return serve(make, gathering, events)
