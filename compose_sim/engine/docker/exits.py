"""Follow the daemon's events, to report each exit of a node, the master or a service once."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

from compose_sim.core.plan.model import Plan
from compose_sim.engine.docker import daemon
from compose_sim.engine.host.docker_socket import daemon_ids
from compose_sim.engine.protocol import NodeStatus
from compose_sim.engine.subprocesses import stream_lines
from compose_sim.errors import EngineError

RUN_LABEL = "composesim.run"
ROLE_LABEL, SERVICE_LABEL = "composesim.role", "composesim.service"
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)  # with which a user kills the docker command


class Exits:
    """The exits of one run."""

    def __init__(self, plan: Plan, statuses: Callable[[], Collection[NodeStatus]], *, since: float) -> None:
        """Follow from a time of the daemon's clock on; `statuses` inspects the containers."""
        self._plan, self._statuses = plan, statuses
        self._running = {"master", *(node.name for node in plan.initial_nodes)}
        self._out_of_memory: set[str] = set()
        self._listed_at: dict[str, float] = {}  # exits found by inspection; an event tells of each too, perhaps later
        self._since_ns = int(since * 1e9)
        self._daemon = _process_of_daemon()

    def follow(self) -> Iterator[NodeStatus]:
        """Yield exits until no node is running. If the docker command is killed, another one goes on from the last event."""
        while self._running:
            events, lines = stream_lines(_events_command(self._plan.run, since_ns=self._since_ns))
            with daemon.ended_if_silent(events):
                # The daemon replays only the last 256 events: a large cluster may have lost nodes before these.
                listed_at = time.time()
                statuses = [each for each in self._statuses() if each.exit_code is not None]
                listed = {status.node: status for status in statuses if status.node in self._running}
                self._running -= listed.keys()
                self._listed_at |= dict.fromkeys(listed, listed_at)
                yield from listed.values()
                if self._running:
                    yield from self._in_lines(lines)
                if self._running and not self._goes_on(events):
                    raise EngineError(daemon.away())

    def _goes_on(self, command: subprocess.Popen[str]) -> bool:
        """Return whether only the docker command ended: by a signal, for which its status may also be 0, or beside the same daemon."""
        # 1: systemd opened the socket for any daemon.
        is_same = self._daemon > 1 and _process_of_daemon() == self._daemon
        return daemon.responds() and (_was_killed(command) or is_same)

    def _in_lines(self, lines: Iterator[str]) -> Iterator[NodeStatus]:
        """Yield exits until none is running, or the lines end; skip those that were found before."""
        names = {"master", *(node.name for node in self._plan.nodes)}
        services = {service.name for service in self._plan.services}
        for line in lines:
            if not line.endswith("\n"):  # the docker command was killed while it wrote
                return
            event = _parse_event(line)
            self._since_ns = max(self._since_ns, event["timeNano"] + 1)
            attributes, action = event["Actor"]["Attributes"], event["Action"]
            if (service := attributes.get(SERVICE_LABEL)) in services and action == "die":
                yield self._exit(str(service), attributes)
            name = attributes.get("composesim.node") or attributes.get(ROLE_LABEL, "")
            if name not in names:
                continue
            if action == "start":
                self._running.add(name)
                if event["timeNano"] / 1e9 > self._listed_at.get(name, math.inf):
                    del self._listed_at[name]  # the next exit is another one
                self._out_of_memory.discard(name)
            elif action == "oom":
                self._out_of_memory.add(name)
            elif action == "die":
                self._running.discard(name)
                if name not in self._listed_at:
                    yield self._exit(name, attributes)
            if not self._running:
                return

    def _exit(self, name: str, attributes: dict[str, str]) -> NodeStatus:
        return NodeStatus(
            run=self._plan.run,
            node=name,
            role=attributes.get(ROLE_LABEL, "node"),
            running=False,
            exit_code=int(attributes.get("exitCode", "0")),
            oom_killed=name in self._out_of_memory,
        )


def _process_of_daemon() -> int:
    """Return the daemon's process; 0 if no process accepts connections."""
    try:
        return daemon_ids()[0]
    except OSError:
        return 0


def _was_killed(command: subprocess.Popen[str]) -> bool:
    """Return whether a signal ended the docker command, and not the daemon; it handles some signals itself."""
    status = command.wait()
    return any(status in (-number, 128 + number) for number in _ENDS)


def _events_command(run: str, *, since_ns: int) -> list[str]:
    names = ("start", "die", "died", "oom", "destroy")  # Podman filters by `died`, although it prints `die`
    filters = [f"label={RUN_LABEL}={run}", *(f"event={name}" for name in names)]
    since = f"{since_ns // 10**9}.{since_ns % 10**9:09d}"
    argv = ["docker", "events", "--since", since, "--format", "{{json .}}"]
    return [*argv, *(word for each in filters for word in ("--filter", each))]


def _parse_event(line: str) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except json.JSONDecodeError:
        event = None
    if not isinstance(event, dict) or "Actor" not in event:
        raise EngineError(daemon.away(), evidence=f"'docker events' printed '{line.strip()}'")
    return event
