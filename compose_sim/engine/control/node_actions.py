"""How is an act done to a node, whatever state the node is in? What does not run is only started, and only once it has ended."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress

from compose_sim.core.events.events import Event
from compose_sim.core.faults import Act, LimitCpus, Order, Signal, Start
from compose_sim.core.plan.model import Plan
from compose_sim.engine.protocol import Engine
from compose_sim.engine.run_folder.agent_commands import Orders
from compose_sim.engine.run_folder.folder import RunFolder
from compose_sim.errors import ComposesimError, EngineError

_LEAVES_WITHIN_S = 15.0  # a node that was told to end; it is killed then
_LOOK_S = 0.05


class Acting:
    """Does acts, one at a time, and knows which nodes run."""

    def __init__(self, plan: Plan, engine: Engine, folder: RunFolder) -> None:
        self._plan, self._engine, self._folder = plan, engine, folder
        self._orders = Orders(folder)
        self._running: set[str] = set()
        self._told_to_end: set[str] = set()
        self._over = False

    @property
    def running(self) -> tuple[str, ...]:
        """The nodes that run, in node order."""
        return tuple(node.name for node in self._plan.nodes if node.name in self._running)

    def look(self) -> None:
        """Ask the engine which nodes run now."""
        statuses = self._engine.statuses(self._plan.run)
        self._running = {status.node for status in statuses if status.running and status.role == "node"}
        self._told_to_end &= self._running

    def hear(self, events: list[Event]) -> None:
        """What is new in the run."""
        self._orders.hear(events)

    def give_up(self) -> None:
        """Wait for nothing any more, now and later: the run is ending."""
        self._over = True
        self._orders.give_up()

    def do(self, act: Act, cause: str) -> None:
        """Do it; `cause` is the id of the fault or request that it belongs to. EngineError where it cannot be done."""
        if isinstance(act, Start):
            self._start(act)
        elif act.node not in self._running and not isinstance(act, LimitCpus):
            # There is nothing to do it to. A limit is kept for the next start, and what is to be undone waits for the agent.
            if isinstance(act, Order) and not act.on:
                self._orders.leave(act, cause)
        elif isinstance(act, Order):
            self._orders.give(act, cause)
        else:
            self._engine.perform(self._plan, self._folder, act)
            if isinstance(act, Signal) and act.name in ("KILL", "TERM"):
                self._told_to_end.add(act.node)

    def let_go(self, acts: Iterable[Act], cause: str) -> None:
        """Do those of the acts that undo something to nodes that run, as far as can be; no node is started."""
        for act in acts:
            if not isinstance(act, Start):
                with suppress(ComposesimError, OSError):
                    self.do(act, cause)

    def _start(self, act: Start) -> None:
        if act.node in self._told_to_end:
            self._await_end(act.node)
        if act.node not in self._running:
            self._refuse_if_over()
            self._engine.perform(self._plan, self._folder, act)
            self._running.add(act.node)

    def _await_end(self, node: str) -> None:
        """A node that was told to end is starting again: its end comes first."""
        deadline = time.monotonic() + _LEAVES_WITHIN_S
        self.look()
        while node in self._running:
            self._refuse_if_over()
            if time.monotonic() > deadline:
                self._engine.perform(self._plan, self._folder, Signal(node=node, name="KILL"))
            time.sleep(_LOOK_S)
            self.look()

    def _refuse_if_over(self) -> None:
        if self._over:
            raise EngineError("the run is ending", hint=f"composesim report --run {self._plan.run}")
