"""Decide which nodes take part in each round, as a state machine.

Every round consists of all nodes, and a failure starts another round, up to the maximum number of restarts. An elastic
run continues with the nodes that are left, and with those that return. There, neither the loss of an absent node nor
what follows from it on other nodes is a failure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable

from ..shared.master_protocol import Message
from .coordinator import Action, Coordinator, Emit, Member, Patience, Send


@dataclass(frozen=True)
class OpenStore(Action):
    """Open a new store, and pass its address to `store_opened`."""


@dataclass
class _Member(Member):
    nproc: int = 0
    # silent (never joined), warming (its ranks cannot start yet, and others train), waiting, running, done, called (to rejoin)
    phase: str = "silent"
    ready: bool = False  # the ranks can start
    took_part: bool = False  # in any round


class Rendezvous(Coordinator[_Member]):
    """Rounds of `nodes` nodes, restarted after at most `max_restarts` failures; with `min_nodes`, the run is elastic."""

    member_type = _Member

    def __init__(
        self,
        nodes: int,
        max_restarts: int,
        min_nodes: int | None = None,
        absent: Callable[[], frozenset[str]] = frozenset,
        node_timeout: float | None = None,
    ) -> None:
        patience = Patience.of(node_timeout, elastic=min_nodes is not None)
        super().__init__(generation=-1, absent=absent, patience=patience)
        self._nodes, self._max_restarts, self._min_nodes = nodes, max_restarts, min_nodes
        self.restart_count = 0
        self._round_nodes: frozenset[str] = frozenset()  # of the latest round
        self._lost: set[str] = set()
        self._store: Message | None = None
        self._store_requested = True
        self._reason = ""  # why the latest round ended

    def begin(self) -> list[Action]:
        """Open the first round's store while nodes are still starting."""
        return [OpenStore()]

    def store_opened(self, host: str | None, port: int) -> list[Action]:
        """Use this store for the next round. Without a `host` there is no store: the first rank listens on `port` itself."""
        self._store, self._store_requested = {"store_host": host, "store_port": port}, False
        return self._advance()

    def tick(self, now: float, idle_since: float = 0.0) -> list[Action]:
        return super().tick(now, idle_since) + self._advance()

    def _handle(self, peer: int, member: _Member, message: Message) -> list[Action]:
        kind = message["type"]
        if kind == "ready" and member.phase == "warming":
            member.ready = True
            return self._advance()
        if kind == "done" and member.phase == "running":
            member.phase = "done"
            return self._finish_if_done()
        # In a round that has already ended, because another node failed first, a failure changes nothing.
        if kind == "failed" and member.phase in ("running", "waiting", "warming"):
            injected = member.phase == "running" and self._is_injected()
            member.phase = "running"  # a node that failed while it waited has to be called again too
            return self._failed(member.node, _description(member.node, message), injected=injected)
        return []

    def _left(self, member: _Member, reason: str) -> list[Action]:
        if not member.node or self.outcome is not None or member.phase == "done":
            return self._advance()
        self._lost.add(member.node)
        injected = self._is_injected(member.node, since=member.heard)
        actions: list[Action] = [Emit("node-lost", {"node": member.node, "reason": reason, "injected": injected})]
        # Between the call to rejoin and the answer, a loss is a consequence of the failure that led to the call.
        if member.phase != "called" and not (injected and member.phase != "running"):
            actions += self._failed(member.node, f"{member.node} was lost: {reason}", injected=injected)
        return actions + self._advance()

    def _replaced(self, peer: int, now: float) -> list[Action]:
        # The node is alive, so the end of the old connection is not a failure in an elastic run.
        self._absent_at[self._members[peer].node] = now
        return super()._replaced(peer, now)

    def _joined(self, peer: int, member: _Member, message: Message) -> list[Action]:
        member.nproc = message["nproc"]
        self._lost.discard(member.node)
        if self._is_elastic and self.generation >= 0 and message.get("ready") is False:
            member.phase, member.ready = "warming", False  # the others need not wait for the imports
            return []
        return self._wait(member) + self._advance()

    def _wait(self, member: _Member) -> list[Action]:
        """Let a node wait for the next round, and call the others; if some are done already, there is no other round."""
        member.phase = "waiting"
        phases = {other.phase for other in self._members.values()}
        return self._rejoin(f"{member.node} joined") if "running" in phases and "done" not in phases else []

    def _finish_if_done(self) -> list[Action]:
        phases = {member.phase for member in self._members.values() if member.node}
        if "done" not in phases or phases & {"running", "called"}:
            return []
        return self._finish(True, "all nodes are done")

    def _failed(self, node: str, reason: str, *, injected: bool) -> list[Action]:
        if self.outcome is not None:
            return []
        if injected:
            return self._finish_if_done() or self._rejoin(reason)
        if self.restart_count >= self._max_restarts:
            return self._finish(False, reason, node=node)
        self.restart_count += 1
        return self._rejoin(reason)

    def _rejoin(self, reason: str) -> list[Action]:
        """Call all nodes of the current round to the next one, which gets a store that this round has not used."""
        self._reason = reason
        actions: list[Action] = []
        for peer, member in self._members.items():
            if member.phase in ("running", "done"):
                member.phase = "called"
                actions.append(Send(peer, {"type": "rejoin", "reason": reason}))
        return actions + self._request_store()

    def _request_store(self) -> list[Action]:
        if self._store is not None or self._store_requested:
            return []
        self._store_requested = True
        return [OpenStore()]

    @property
    def _is_elastic(self) -> bool:
        return self._min_nodes is not None

    def _is_injected(self, node: str = "", *, since: float = float("inf")) -> bool:
        """Whether what happens to `node`, or to any node of the current round, follows from a fault in an elastic run."""
        affected = {node} if node else self._round_nodes
        return self._is_elastic and bool(affected & self._absent_since(since))

    def _advance(self) -> list[Action]:
        """Do what follows from the phases of all nodes."""
        warming = [member for member in self._members.values() if member.phase == "warming"]
        ready = [member for member in warming if member.ready]
        actions: list[Action] = []
        # Nodes that return together interrupt the others once, not once per node.
        if ready == warming or not any(member.phase in ("running", "done") for member in self._members.values()):
            for member in ready:
                actions += self._wait(member)
        return actions + self._start_round_if_complete()

    def _start_round_if_complete(self) -> list[Action]:
        by_phase: dict[str, list[_Member]] = {}
        for member in self._members.values():
            by_phase.setdefault(member.phase, []).append(member)
        waiting, warming = by_phase.pop("waiting", []), by_phase.pop("warming", [])
        if self.outcome is not None or by_phase or not waiting:
            return []
        # Nodes that trained together continue at once. If all of them are new, one round with all is better than several.
        if len(waiting) < self._needed() or (warming and not any(member.took_part for member in waiting)):
            return []
        if self._store is None:
            return self._request_store()
        self.generation += 1
        store, self._store = self._store, None
        return self._start_round(store)

    def _needed(self) -> int:
        """Return the minimum number of nodes of the next round."""
        if self._min_nodes is None:
            return self._nodes
        if self.generation >= 0:
            return self._min_nodes
        present = {member.node for member in self._members.values()}
        return max(self._min_nodes, self._nodes - len((self._lost | self._absent()) - present))

    def _start_round(self, store: Message) -> list[Action]:
        # By node number: names would sort node-10 before node-2.
        waiting = [(peer, member) for peer, member in self._members.items() if member.phase == "waiting"]
        ordered = sorted(waiting, key=lambda item: (item[1].node_rank, item[1].node))
        self._round_nodes = frozenset(member.node for _, member in ordered)
        common = {
            "generation": self.generation,
            "restart_count": self.restart_count,
            "max_restarts": self._max_restarts,
            "world_size": sum(member.nproc for _, member in ordered),
            "group_world_size": len(ordered),
            "nodes": [member.node for _, member in ordered],
            "nproc": [member.nproc for _, member in ordered],
            **store,
        }
        actions: list[Action] = [Emit("round", {**common, "because": self._reason})]
        first_rank = 0
        for group_rank, (peer, member) in enumerate(ordered):
            member.phase, member.took_part = "running", True
            place = {"first_rank": first_rank, "group_rank": group_rank}
            actions.append(Send(peer, {"type": "round", **common, **place}))
            first_rank += member.nproc
        return actions


def _description(node: str, failure: Message) -> str:
    rank, signal = failure.get("rank"), failure.get("signal")
    how = f"was ended by signal {signal}" if signal else f"ended with exit code {failure.get('exit_code')}"
    return f"rank {rank} on {node} {how}" if rank is not None else f"{node} failed: it {how}"
