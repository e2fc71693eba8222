"""What does a node do, from joining to leaving? It starts its ranks when the master says so, watches them, and stops them in time.

One loop over everything that can happen: the master speaks, a rank starts, prints or ends, a signal arrives, time passes.
"""

from __future__ import annotations

import os
import selectors
import signal
import time
from functools import partial
from typing import Callable

from ..shared.event_log import EventLog
from ..shared.master_protocol import BEAT_SECONDS, Message
from ..shared.rank_logs import Outputs
from . import usage
from .faults import Orders
from .launchers import ROUND_LAUNCHERS, Launch, Starter, rank_variables
from .master_client import Membership
from .rank_processes import Ending, OutOfMemoryKills, Rank
from .stalls.stall_detector import Stalls

GRACE_SECONDS = 2.0  # between SIGTERM and SIGKILL
STOPPED = 128 + signal.SIGTERM


class Agent:
    """One node of one run."""

    def __init__(
        self,
        *,
        master: str,
        launch: Launch,
        node_rank: int,
        events: EventLog,
        outputs: Outputs,
        selector: selectors.BaseSelector,
        say: Callable[[str], None],
        contained: bool,
        stalls: Stalls,
        orders: Orders,
    ) -> None:
        """Start nothing yet but the process that will start the ranks; the master is at HOST:PORT."""
        self._launch, self._node_rank, self._events = launch, node_rank, events
        self._outputs, self._selector, self._say = outputs, selector, say
        self._contained, self._stalls, self._orders = contained, stalls, orders
        self._out_of_memory_kills = OutOfMemoryKills(contained=contained)
        self._round: Message = {}
        self._ranks: list[Rank] = []
        self._stop_reason, self._leaving, self._interrupted = "", False, False
        self._kill_at = float("inf")
        self._next: Callable[[], None] | None = None  # what to do once all ranks have ended; else tell the master
        self._failure_code, self._done = 0, False
        self._exit_code: int | None = None
        self._membership = Membership(master, selector, self)
        self._starter = self._start_starter()

    def run(self) -> int:
        """Take part in the run. The node's exit code: its first failing rank's, 143 when it was stopped because of others."""
        self._membership.dial()
        beat_at = time.monotonic()
        while self._exit_code is None:
            now = time.monotonic()
            if now >= beat_at:
                beat_at = now + BEAT_SECONDS
                self._beat()
            if now >= self._kill_at:
                self._kill_ranks()
            others = min(self._stalls.wake_at, self._orders.wake_at, self._membership.wake_at)
            for key, _ in self._selector.select(max(0.0, min(beat_at, self._kill_at, others) - now)):
                key.data()
            self._membership.go_on()
            self._stalls.go_on()
            self._orders.look(self._ranks)
            self._outputs.hold()
        return self._exit_code

    def close(self) -> None:
        """Leave nothing behind: no rank, no child of one, no process of ours."""
        self._signal_ranks(signal.SIGKILL)
        self._stop_starter(at_once=self._exit_code != 0)

    def interrupt(self, signals: bytes) -> None:
        """A person or the engine wants this node to end; the second time at once."""
        for number in signals:
            name = signal.Signals(number).name
            self._say(f"stopping: {name}")
            if self._interrupted:
                self._kill_at = 0.0
            self._interrupted = self._leaving = True
            self._next = partial(self._leave, 128 + number)
            self._stop_ranks(f"the node received {name}")

    # What the master says

    def connected(self) -> None:
        """The master answers: join."""
        code = self._failure_code
        self._join()
        if self._starter.closed:  # it ended while there was nobody to tell
            self._failed(None, code, None)

    def heard(self, message: Message) -> None:
        """The master has spoken."""
        kind = message["type"]
        if kind == "round":
            self._start_round(message)
        elif kind == "rejoin":
            self._stop_and(self._rejoin, f"joining again: {message['reason']}")
        elif kind == "stop":
            self._stop_and(partial(self._leave, STOPPED), f"stopping: {message['reason']}")
            self._leaving = True
        elif kind == "end":
            self._leave(0)

    def disconnected(self, reason: str) -> None:
        """This node counts as lost; it may join again."""
        self._stop_and(self._redial, f"stopping: lost the connection to the master ({reason})")

    def unreachable(self, reason: str) -> None:
        """There is nobody to join."""
        self._say(reason)
        self._leave(STOPPED if self._round else 1)

    def _start_round(self, round_: Message) -> None:
        if self._stop_reason:  # told to stop while the round was on its way
            return
        self._round = round_
        launch, first = self._launch, round_["first_rank"]
        variables = [rank_variables(launch, round_, local_rank) for local_rank in range(launch.nproc)]
        address, port = variables[0]["MASTER_ADDR"], int(variables[0]["MASTER_PORT"])
        told = {key: round_[key] for key in ("world_size", "nodes", "restart_count")}
        self._ranks = [Rank(rank, ended=launch.is_hosted) for rank in range(first, first + launch.nproc)]
        logs = {rank.rank: self._outputs.logged(rank.rank) for rank in self._ranks}
        self._of_round().emit("rendezvous", master_addr=address, master_port=port, logs=logs, **told)
        self._starter.start(variables, [self._outputs.open(rank.rank) for rank in self._ranks])

    def _join(self) -> None:
        self._ranks, self._stop_reason, self._next = [], "", None
        self._failure_code, self._done = 0, False
        self._kill_at = float("inf")
        place = {"node": self._events.node, "node_rank": self._node_rank, "nproc": self._launch.nproc}
        self._membership.send({"type": "join", "ready": self._ready, **place})

    def _rejoin(self) -> None:
        self._renew_starter()
        self._join()

    def _redial(self) -> None:
        self._next = None
        self._renew_starter()
        self._membership.dial()

    def _renew_starter(self) -> None:
        if self._launch.launcher in ROUND_LAUNCHERS:  # one a round: this one may be waiting for nodes that were lost
            self._stop_starter(at_once=True)
        if self._starter.closed:
            self._starter = self._start_starter()

    # What the ranks do

    def _hear_starter(self) -> None:
        packet = {} if self._starter.closed else self._starter.receive()
        if packet is None:
            self._starter_ended()
        elif "ready" in packet:
            self._ready = True
            self._membership.send({"type": "ready"})
        elif "started" in packet:
            self._rank_started(packet["started"], packet["pid"])
        elif "ended" in packet:
            by = "its session has ended" if packet.get("stopped") else ""
            self._rank_ended(self._ranks[packet["ended"]], Ending(packet["status"]), stopped=by)
            self._look_if_all_ended()

    def _rank_started(self, local_rank: int, pid: int) -> None:
        rank = self._ranks[local_rank]
        if rank.ended:  # a hosted one, that begins or begins again
            rank.signal(signal.SIGKILL)
            rank = self._ranks[local_rank] = Rank(rank.rank)
        rank.pid = pid
        self._of_round(rank.rank).emit("rank-started", pid=pid, local_rank=local_rank)
        if self._stop_reason:  # it was on its way when the others were stopped
            rank.signal(signal.SIGTERM)

    def _rank_ended(self, rank: Rank, ending: Ending, *, reason: str = "", stopped: str = "") -> None:
        rank.ended = True
        rank.signal(0)
        self._outputs.drain(rank.rank)
        stopped = self._stop_reason or stopped
        self._of_round(rank.rank).emit(
            "rank-exited",
            exit_code=ending.code,
            signal=ending.signal,
            oom=self._out_of_memory_kills.ended(ending.status),
            stopped=bool(stopped),
            reason=stopped or reason or ending.words,
        )
        if ending.status != 0 and not (stopped or self._launch.is_hosted):
            self._failed(rank.rank, ending.code, ending.signal)

    def _failed(self, rank: int | None, code: int | None, killed_by: int | None) -> None:
        self._failure_code = 128 + killed_by if killed_by else code or 1
        self._membership.send(
            {"type": "failed", "rank": rank, "exit_code": code, "signal": killed_by, "t": time.time()}
        )
        self._stop_ranks(f"rank {rank} on {self._events.node} failed")

    def _starter_ended(self) -> None:
        """Its ranks, if it had any, were killed with it."""
        ending = Ending(self._stop_starter(at_once=bool(self._stop_reason)))
        self._say(f"the {self._launch.launcher} launcher's process ended ({ending.words}); its messages stand above")
        started = [rank for rank in self._ranks if rank.pid and not rank.ended]
        for rank in self._ranks:
            if rank in started:
                self._rank_ended(rank, Ending(-signal.SIGKILL), reason="the process that started it ended")
            rank.ended = True
        if not self._stop_reason and (self._launch.is_hosted or not started):
            self._failed(None, ending.code if ending.status else 1, ending.signal)
        self._look_if_all_ended()

    def _look_if_all_ended(self) -> None:
        if any(not rank.ended for rank in self._ranks):
            return
        if self._stop_reason:
            self._signal_ranks(signal.SIGKILL)  # what their children still do is of no use any more
        elif self._launch.is_hosted:  # others may begin
            return
        self._outputs.close_round()
        if self._next is not None:
            self._next()
        elif not self._stop_reason:
            self._done = True
            self._membership.send({"type": "done"})

    # Stopping and leaving

    def _stop_and(self, then: Callable[[], None], reason: str) -> None:
        if self._leaving:  # and nobody is asked
            return
        self._say(reason)
        self._next = then
        self._stop_ranks(reason.partition(": ")[2])

    def _stop_ranks(self, reason: str) -> None:
        """Stop all ranks; when the last has ended, what comes next follows."""
        if not self._stop_reason:
            self._stop_reason = reason
            self._signal_ranks(signal.SIGTERM)
            self._kill_at = time.monotonic() + GRACE_SECONDS
        self._look_if_all_ended()

    def _kill_ranks(self) -> None:
        self._kill_at = float("inf")
        self._signal_ranks(signal.SIGKILL)
        if any(not rank.pid and not rank.ended for rank in self._ranks):  # the launcher is still busy importing
            self._starter_ended()

    def _signal_ranks(self, number: int) -> None:
        for rank in self._ranks:
            rank.signal(number)

    def _leave(self, code: int) -> None:
        # Ranks that all ended well before others failed leave nothing to blame on this node.
        self._exit_code = 0 if self._done else self._failure_code or code

    # Small acts

    def _start_starter(self) -> Starter:
        starter = Starter(self._launch)
        # One that is made anew for each round imports anew: if rounds waited for that, each would be over before it began.
        self._ready = self._launch.launcher in ROUND_LAUNCHERS
        self._selector.register(starter.link, selectors.EVENT_READ, self._hear_starter)
        return starter

    def _stop_starter(self, *, at_once: bool = False) -> int:
        if not self._starter.closed:
            self._selector.unregister(self._starter.link)
        return self._starter.close(at_once=at_once)

    def _beat(self) -> None:
        self._membership.send({"type": "beat"})
        for rank in self._ranks:
            if rank.ended:  # notice when its last child has gone
                rank.signal(0)
        used = usage.sample(os.getpid(), contained=self._contained)
        self._events.bind(generation=self._round.get("generation")).emit("usage", **used)
        if self._ranks and not self._stop_reason:
            self._stalls.look(self._of_round(), self._ranks, self._round["store_port"])

    def _of_round(self, rank: int | None = None) -> EventLog:
        return self._events.bind(rank=rank, generation=self._round["generation"])
