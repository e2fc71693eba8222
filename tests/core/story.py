"""Runs with faults, told as the events that such a run writes: a test says what happened, and leaves out the rest."""

from __future__ import annotations

from collections.abc import Sequence

from compose_sim.core.events.events import Event
from compose_sim.core.plan.model import Plan
from compose_sim.core.state.fold import fold_all
from compose_sim.core.state.state import ClusterState

_OF_RANKS = ("step", "metric", "init", "exception", "rank-exited", "rank-started")
_OF_RANKS += ("stalled", "resumed", "halted", "continued")


class Story:
    """The events of one run, a rank a node; nodes are told by their numbers, times in seconds since the start."""

    def __init__(self, plan: Plan) -> None:
        """A run that has just been started."""
        self.plan = plan
        self.events = [Event(t=0.0, kind="started")]
        self.generation = -1
        self.nodes: list[int] = []

    @property
    def state(self) -> ClusterState:
        """Where the run stands after all that was told."""
        return fold_all(self.plan, self.events)

    def tell(self, t: float, kind: str, node: int | None = None, /, **data: object) -> Story:
        """One event, of the node's own rank where it is one of ranks."""
        is_ranks = kind in _OF_RANKS
        rank = self.nodes.index(node) if is_ranks and node in self.nodes else None
        of_node = {} if node is None else {"node": f"node-{node}"}
        generation = self.generation if self.generation >= 0 else None
        self.events.append(Event(t=t, kind=kind, rank=rank, generation=generation, data=data, **of_node))
        return self

    def starts(self, t: float, *nodes: int) -> Story:
        """These nodes come up."""
        for node in nodes:
            self.tell(t, "node-started", node)
        return self

    def round(self, t: float, *nodes: int, restarts: int = 0) -> Story:
        """The next round begins, with these nodes."""
        self.generation, self.nodes = self.generation + 1, list(nodes)
        names = [f"node-{node}" for node in nodes]
        common = {"world_size": len(nodes), "nodes": names, "restart_count": restarts}
        data = {"generation": self.generation, **common}
        self.events.append(Event(t=t, kind="round", node="master", generation=self.generation, data=data))
        for node in nodes:
            self.tell(t + 0.1, "rendezvous", node, **common)
        return self

    def trains(self, t: float, first: int, last: int, *, every: int = 1) -> Story:
        """All ranks make their first step at `t`; the first rank prints lines for global steps `first` to `last`."""
        for node in self.nodes:
            self.tell(t, "step", node, step=1)
        for step in range(first, last + 1, every):
            self.tell(t + 0.01, "metric", self.nodes[0], step=step)
        return self

    def fault(
        self,
        t: float,
        name: str,
        kind: str,
        node: int,
        *,
        for_s: float | None = None,
        lasts: bool = True,
        **more: object,
    ) -> Story:
        """A fault on one node is injected."""
        data = {"id": name, "kind": kind, "nodes": [f"node-{node}"], "text": f"node-{node} {kind}", "for_s": for_s}
        data |= {"loses": [f"node-{node}"], "lasts": lasts, "rank": None, **more}
        return self.tell(t, "fault", phase="begun", **data).tell(t + 0.05, "fault", phase="done", **data)

    def heals(self, t: float, name: str) -> Story:
        """A fault is healed."""
        return self.tell(t, "heal", id=name, phase="begun").tell(t + 0.05, "heal", id=name, phase="done")

    def lost(self, t: float, node: int, reason: str = "connection closed") -> Story:
        """The master loses a node."""
        event = {"node": f"node-{node}", "reason": reason}
        self.events.append(Event(t=t, kind="node-lost", node="master", generation=self.generation, data=event))
        return self

    def stopped(self, t: float, codes: dict[int, int]) -> Story:
        """The engine's word on nodes that ended, with their exit codes."""
        for node, code in codes.items():
            self.tell(t, "node-stopped", node, exit_code=code)
        return self

    def ended(self, t: float, *, passed: bool, reason: str = "all nodes are done") -> Story:
        """The master's word on the run."""
        self.events.append(Event(t=t, kind="ended", node="master", data={"passed": passed, "reason": reason}))
        return self

    def shuffled(self, order: Sequence[int]) -> Story:
        """The same events in another order, as several files are read."""
        self.events = [self.events[index] for index in order]
        return self
