"""Execute actions on nodes in any state."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from compose_sim.core.events.events import Event
from compose_sim.core.faults.kind import Action, AgentCommand, LimitCpus, Signal, Start
from compose_sim.core.plan.model import Plan
from compose_sim.engine.protocol import Engine
from compose_sim.engine.run_folder.control_requests import AgentCommands
from compose_sim.engine.run_folder.folder import RunFolder
from compose_sim.errors import ComposesimError, EngineError

if TYPE_CHECKING:
    from compose_sim.node.shared.fault_note import CommandName

_SHUTDOWN_S = 15.0  # a node that has not ended this long after a signal is killed
_POLL_S = 0.05


class NodeActions:
    """Executes actions, one at a time, and keeps track of the nodes that are running."""

    def __init__(self, plan: Plan, engine: Engine, folder: RunFolder) -> None:
        self._plan, self._engine, self._folder = plan, engine, folder
        self._commands = AgentCommands(folder)
        self._running: set[str] = set()
        self._ending: set[str] = set()  # nodes that got SIGTERM or SIGKILL
        self._canceled = False

    @property
    def running(self) -> tuple[str, ...]:
        """The nodes that are running, in node order."""
        return tuple(node.name for node in self._plan.nodes if node.name in self._running)

    def refresh(self) -> None:
        """Ask the engine which nodes are running."""
        statuses = self._engine.statuses(self._plan.run)
        self._running = {status.node for status in statuses if status.running and status.role == "node"}
        self._ending &= self._running

    def observe(self, events: list[Event]) -> None:
        """Take note of new events of the run."""
        self._commands.observe(events)

    def cancel(self) -> None:
        """Stop waiting, now and later, because the run is ending."""
        self._canceled = True
        self._commands.cancel()

    def execute(self, action: Action, cause: str) -> None:
        """Execute an action; `cause` is the id of the fault or request that it belongs to. EngineError if it fails."""
        if isinstance(action, Start):
            self._start(action)
        elif action.node not in self._running and not isinstance(action, LimitCpus):
            # The node is gone. A CPU limit also applies to the next start, and the next agent finds what it has to undo.
            if isinstance(action, AgentCommand) and not action.on:
                self._commands.write(action, cause)
        elif isinstance(action, AgentCommand):
            self._commands.send(action, cause)
        else:
            self._engine.perform(self._plan, self._folder, action)
            if isinstance(action, Signal) and action.name in ("KILL", "TERM"):
                self._ending.add(action.node)

    def ask_all(self, name: CommandName, values: Mapping[str, Any], cause: str) -> None:
        """Have the agents of all running nodes execute a command, without waiting for them."""
        for node in self.running:
            self._commands.write(AgentCommand(node=node, name=name, values=values), cause)

    def try_all(self, actions: Iterable[Action], cause: str) -> None:
        """Execute these actions, except starts of nodes, and ignore failures."""
        for action in actions:
            if not isinstance(action, Start):
                with suppress(ComposesimError, OSError):
                    self.execute(action, cause)

    def _start(self, action: Start) -> None:
        if action.node in self._ending:
            self._wait_for_end(action.node)
        if action.node not in self._running:
            self._raise_if_canceled()
            self._engine.perform(self._plan, self._folder, action)
            self._running.add(action.node)

    def _wait_for_end(self, node: str) -> None:
        """Wait until a node that got a signal has ended, because it cannot be started before."""
        deadline = time.monotonic() + _SHUTDOWN_S
        self.refresh()
        while node in self._running:
            self._raise_if_canceled()
            if time.monotonic() > deadline:
                self._engine.perform(self._plan, self._folder, Signal(node=node, name="KILL"))
            time.sleep(_POLL_S)
            self.refresh()

    def _raise_if_canceled(self) -> None:
        if self._canceled:
            raise EngineError("the run is ending", hint=f"composesim report --run {self._plan.run}")
