"""Take part in a run as one node: start the ranks when the master requests it, watch them, and stop them in time.

One loop handles all events: messages from the master, the start, output and end of ranks, signals, and timers.
"""

from __future__ import annotations

import os
import selectors
import signal
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Callable

from ..shared.event_log import EventLog
from ..shared.master_protocol import HEARTBEAT_SECONDS, Message
from ..shared.process import STOP_NOTE, Owners, is_on_cluster
from ..shared.rank_logs import RankLogs
from . import usage
from .faults.command_runner import CommandRunner
from .launchers import ROUND_LAUNCHERS, ContainerLimits, ExitStatus, Launch, RankProcess, Starter, rank_variables
from .master_client import MasterClient
from .stalls.stall_detector import StallDetector

STOPPED = 128 + signal.SIGTERM


@dataclass(frozen=True)
class Node:
    """What an agent knows about its node from the beginning; `master` is HOST:PORT."""

    master: str
    secret: bytes = field(repr=False)
    launch: Launch
    rank: int
    events: EventLog
    contained: bool  # whether the node has a container to itself
    stall_seconds: float


class Agent:
    """One node of one run; it is the `listener` of the master client."""

    def __init__(
        self, node: Node, logs: RankLogs, selector: selectors.BaseSelector, log: Callable[[str], None]
    ) -> None:
        """Start only the process that will start the ranks."""
        self._node, self._launch, self._events = node, node.launch, node.events
        self._logs, self._selector, self._log = logs, selector, log
        self._stalls = StallDetector(node.stall_seconds)
        self._commands = CommandRunner(node.events, contained=node.contained)
        self._owners = Owners(node.events.folder)
        self._limits = ContainerLimits(contained=node.contained)
        self._round: Message = {}
        self._ranks: list[RankProcess] = []
        self._stop_reason, self._leaving, self._interrupted = "", False, False
        self._kill_at = float("inf")
        self._next: Callable[[], None] | None = None  # after all ranks have ended; None: report to the master
        self._failure_code, self._done = 0, False
        self._exit_code: int | None = None
        self._master = MasterClient(node.master, node.secret, selector, self)
        self._starter = self._start_starter()

    def run(self) -> int:
        """Take part in the run, and return the exit code of the first rank that failed, or 143 if others stopped this node."""
        self._master.connect()
        heartbeat_at = time.monotonic()
        while self._exit_code is None:
            now = time.monotonic()
            if now >= heartbeat_at:
                heartbeat_at = now + HEARTBEAT_SECONDS
                self._heartbeat()
            if now >= self._kill_at:
                self._kill_ranks()
            others = min(self._stalls.wake_at, self._commands.wake_at, self._master.wake_at)
            for key, _ in self._selector.select(max(0.0, min(heartbeat_at, self._kill_at, others) - now)):
                key.data()
            self._master.poll()
            self._stalls.poll()
            self._commands.poll(self._ranks)
            self._logs.hold()
        return self._exit_code

    def close(self) -> None:
        """Kill all ranks with their children, and our own processes."""
        self._signal_ranks(signal.SIGKILL)
        self._stop_starter(at_once=self._exit_code != 0)
        self._commands.close()

    def interrupt(self, signals: bytes) -> None:
        """Stop this node because of a signal, and kill the ranks at the second one. A cluster that gave notice kills them itself."""
        if is_on_cluster() and not (self._events.folder / STOP_NOTE).exists():
            self._commands.wait_for_cluster()
        for number in signals:
            name = signal.Signals(number).name
            self._log(f"stopping: {name}")
            if self._interrupted:
                self._kill_at = 0.0
            self._interrupted = self._leaving = True
            self._next = partial(self._leave, 128 + number)
            self._stop_ranks(f"the node received {name}")

    # Messages from the master

    def connected(self) -> None:
        """Join the run."""
        code = self._failure_code
        self._join()
        if self._starter.closed:  # it ended while there was no connection
            self._failed(None, code, None)

    def received(self, message: Message) -> None:
        """Handle a message from the master."""
        kind = message["type"]
        if kind == "round":
            self._start_round(message)
        elif kind == "rejoin":
            self._stop_and(self._rejoin, f"joining again: {message['reason']}")
        elif kind == "stop":
            self._stop_and(partial(self._leave, STOPPED), f"stopping: {message['reason']}")
            self._leaving = True
        elif kind == "end":
            self._master.close()  # the master ends while the starter ends, which takes long with torch
            self._leave(0)

    def disconnected(self, reason: str) -> None:
        """Stop the ranks, because this node counts as lost, and join again."""
        self._stop_and(self._reconnect, f"stopping: lost the connection to the master ({reason})")

    def unreachable(self, reason: str) -> None:
        """Leave, because there is no master."""
        self._log(reason)
        self._leave(STOPPED if self._round else 1)

    def _start_round(self, round_: Message) -> None:
        if self._stop_reason:  # the node was asked to stop in the meantime
            return
        self._round = round_
        launch, first = self._launch, round_["first_rank"]
        variables = [rank_variables(launch, round_, local_rank) for local_rank in range(launch.nproc)]
        address, port = variables[0]["MASTER_ADDR"], int(variables[0]["MASTER_PORT"])
        facts = {key: round_[key] for key in ("world_size", "nodes", "restart_count")}
        self._ranks = [RankProcess(rank, ended=launch.is_hosted) for rank in range(first, first + launch.nproc)]
        logs = {rank.rank: self._logs.logged(rank.rank) for rank in self._ranks}
        self._of_round().emit("rendezvous", master_addr=address, master_port=port, logs=logs, **facts)
        self._starter.start(variables, [self._logs.open(rank.rank) for rank in self._ranks])

    def _join(self) -> None:
        self._ranks, self._stop_reason, self._next = [], "", None
        self._failure_code, self._done = 0, False
        self._kill_at = float("inf")
        place = {"node": self._events.node, "node_rank": self._node.rank, "nproc": self._launch.nproc}
        self._master.send({"type": "join", "ready": self._ready, **place})

    def _rejoin(self) -> None:
        self._renew_starter()
        self._join()

    def _reconnect(self) -> None:
        self._next = None
        self._renew_starter()
        self._master.connect()

    def _renew_starter(self) -> None:
        if self._launch.launcher in ROUND_LAUNCHERS:  # one per round: this one may wait for nodes that were lost
            self._stop_starter(at_once=True)
        if self._starter.closed:
            self._starter = self._start_starter()

    # Messages from the starter

    def _read_starter(self) -> None:
        packet = {} if self._starter.closed else self._starter.receive()
        if packet is None:
            self._starter_ended()
        elif "ready" in packet:
            self._ready = True
            self._master.send({"type": "ready"})
        elif "started" in packet:
            self._rank_started(packet["started"], packet["pid"])
        elif "ended" in packet:
            stopped = "its session has ended" if packet.get("stopped") else ""
            rank, refused = self._ranks[packet["ended"]], packet.get("no_process_ids", False)
            self._rank_ended(rank, ExitStatus(packet["status"]), stopped=stopped, refused=refused)
            self._check_if_all_ended()

    def _rank_started(self, local_rank: int, pid: int) -> None:
        rank = self._ranks[local_rank]
        if rank.ended:  # a hosted rank, which may start several times in a round
            rank.signal(signal.SIGKILL)
            rank = self._ranks[local_rank] = RankProcess(rank.rank)
        rank.pid = pid
        self._of_round(rank.rank).emit("rank-started", pid=pid, local_rank=local_rank)
        if self._stop_reason:  # it started while the others were being stopped
            rank.signal(signal.SIGTERM)

    def _rank_ended(
        self, rank: RankProcess, exit_status: ExitStatus, *, reason: str = "", stopped: str = "", refused: bool = False
    ) -> None:
        rank.ended = True
        rank.signal(0)
        self._logs.drain(rank.rank)
        stopped = self._stop_reason or stopped
        self._of_round(rank.rank).emit(
            "rank-exited",
            exit_code=exit_status.code,
            signal=exit_status.signal,
            **self._limits.reached_by(exit_status.status, refused=refused),
            stopped=bool(stopped),
            reason=stopped or reason or str(exit_status),
            words=[] if stopped or exit_status.status == 0 else self._logs.last_words(rank.rank),
        )
        if exit_status.status != 0 and not (stopped or self._launch.is_hosted):
            self._failed(rank.rank, exit_status.code, exit_status.signal)

    def _failed(self, rank: int | None, code: int | None, killed_by: int | None) -> None:
        self._failure_code = 128 + killed_by if killed_by else code or 1
        self._master.send({"type": "failed", "rank": rank, "exit_code": code, "signal": killed_by})
        self._stop_ranks(f"rank {rank} on {self._events.node} failed")

    def _starter_ended(self) -> None:
        """Handle the end of the starter; the kernel has then killed the ranks as well."""
        exit_status = ExitStatus(self._stop_starter(at_once=bool(self._stop_reason)))
        self._log(f"the process of the {self._launch.launcher} launcher ended ({exit_status}); see its messages above")
        started = [rank for rank in self._ranks if rank.pid and not rank.ended]
        for rank in self._ranks:
            if rank in started:
                self._rank_ended(rank, ExitStatus(-signal.SIGKILL), reason="the process that started it ended")
            rank.ended = True
        if not self._stop_reason and (self._launch.is_hosted or not started):
            self._failed(None, exit_status.code if exit_status.status else 1, exit_status.signal)
        self._check_if_all_ended()

    def _check_if_all_ended(self) -> None:
        if any(not rank.ended for rank in self._ranks):
            return
        if self._stop_reason:
            self._signal_ranks(signal.SIGKILL)  # their children too
        elif self._launch.is_hosted:  # other ranks may start
            return
        self._logs.close_round()
        if self._next is not None:
            self._next()
        elif not self._stop_reason:
            self._done = True
            self._master.send({"type": "done"})

    # Stopping and leaving

    def _stop_and(self, then: Callable[[], None], reason: str) -> None:
        if self._leaving:
            return
        self._log(reason)
        self._next = then
        self._stop_ranks(reason.partition(": ")[2])

    def _stop_ranks(self, reason: str) -> None:
        """Stop all ranks, and call `_next` when the last one has ended."""
        if not self._stop_reason:
            self._stop_reason = reason
            self._signal_ranks(signal.SIGTERM)
            self._kill_at = time.monotonic() + self._commands.grace_seconds
        self._check_if_all_ended()

    def _kill_ranks(self) -> None:
        self._kill_at = float("inf")
        self._signal_ranks(signal.SIGKILL)
        if any(not rank.pid and not rank.ended for rank in self._ranks):  # the starter is still importing
            self._starter_ended()

    def _signal_ranks(self, number: int) -> None:
        for rank in self._ranks:
            rank.signal(number)

    def _leave(self, code: int) -> None:
        # If all ranks had succeeded before another node failed, this node has succeeded.
        self._exit_code = 0 if self._done else self._failure_code or code

    # Helpers

    def _start_starter(self) -> Starter:
        starter = Starter(self._launch)
        # A starter that serves one round imports again for the next. If rounds waited for it, a returning node would never find
        # one to join.
        self._ready = self._launch.launcher in ROUND_LAUNCHERS
        self._selector.register(starter.link, selectors.EVENT_READ, self._read_starter)
        return starter

    def _stop_starter(self, *, at_once: bool = False) -> int:
        if not self._starter.closed:
            self._selector.unregister(self._starter.link)
        return self._starter.close(at_once=at_once)

    def _heartbeat(self) -> None:
        self._master.send({"type": "heartbeat"})
        if self._owners.are_gone():
            self._stop_and(partial(self._leave, STOPPED), "stopping: composesim and its supervisor have ended")
            self._leaving = True
        for rank in self._ranks:
            if rank.ended:  # notice when the last child has ended
                rank.signal(0)
        used = usage.sample(os.getpid(), contained=self._node.contained)
        self._events.bind(generation=self._round.get("generation")).emit("usage", **used)
        if self._ranks and not self._stop_reason:
            self._stalls.check(self._of_round(), self._ranks, self._round["store_port"])

    def _of_round(self, rank: int | None = None) -> EventLog:
        return self._events.bind(rank=rank, generation=self._round["generation"])
