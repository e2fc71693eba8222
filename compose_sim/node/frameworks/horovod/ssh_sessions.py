"""Assign the ranks of one node to the ssh sessions that request them, without sockets or processes.

Another launcher starts a program in an ssh session, which requests a rank and waits for it to end. Each local rank has a
slot. If the session ends, the rank is stopped, and another session gets the slot as soon as the rank has ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Union

Variables = dict[str, str]
GRACE_SECONDS = 2.0  # between SIGTERM and SIGKILL

_LOCAL_RANK = ("HOROVOD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")
_LOCAL_SIZE = ("HOROVOD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")
_SIZE = ("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE")
# The variables that a launcher sets for its ranks. As with every launcher, ranks get all others from their node.
_LAUNCHER_PREFIXES = ("HOROVOD_", "OMPI_", "ORTE_", "OPAL_", "PMIX_", "PRTE_")


@dataclass(frozen=True)
class ForkRank:
    """Start the rank of a slot for a session, with these variables."""

    slot: int
    variables: Variables


@dataclass(frozen=True)
class StopRank:
    """Send SIGTERM to the rank of a slot, and SIGKILL if it still runs GRACE_SECONDS later."""

    slot: int


@dataclass(frozen=True)
class AnswerSession:
    """Report to a session how the rank ended, or why there is none, and close the session."""

    session: int
    status: int
    error: str = ""


@dataclass(frozen=True)
class ReportExit:
    """Report to the agent that a rank has ended; `stopped` if that was because the session had ended."""

    slot: int
    status: int
    stopped: bool


Action = Union[ForkRank, StopRank, AnswerSession, ReportExit]


@dataclass
class _Slot:
    variables: Variables
    running: bool = False
    session: int | None = None  # that the running rank belongs to; None while the rank is being stopped
    next: tuple[int, Variables] | None = None  # the session that gets the slot after that


class SshSessions:
    """The sessions of one node, and the slots of its ranks."""

    def __init__(self) -> None:
        """Let sessions wait, because no round has begun."""
        self._slots: list[_Slot] = []
        self._early: dict[int, Variables] = {}

    def start_round(self, ranks: Sequence[Variables]) -> list[Action]:
        """Begin a round with these variables of each local rank."""
        was_running = [slot.running for slot in self._slots] + [False] * len(ranks)
        self._slots = [_Slot(variables, running) for variables, running in zip(ranks, was_running)]
        early, self._early = self._early, {}
        return [action for session, environment in early.items() for action in self.request(session, environment)]

    def request(self, session: int, environment: Variables) -> list[Action]:
        """Handle a session that requests the rank that the environment names."""
        if not self._slots:
            self._early[session] = environment
            return []
        number = _number(environment, _LOCAL_RANK)
        if number is None or not 0 <= number < len(self._slots):
            return [AnswerSession(session, 1, f"local rank {number} does not exist: this node has {len(self._slots)}")]
        slot = self._slots[number]
        if slot.session is not None or slot.next is not None:
            return [AnswerSession(session, 1, f"local rank {number} of this node is already running")]
        if slot.running:
            slot.next = (session, environment)
            return []
        return self._fork(number, session, environment)

    def left(self, session: int) -> list[Action]:
        """Handle the end of a session."""
        self._early.pop(session, None)
        for number, slot in enumerate(self._slots):
            if slot.next and slot.next[0] == session:
                slot.next = None
            if slot.session == session:
                slot.session = None
                return [StopRank(number)]
        return []

    def rank_ended(self, number: int, status: int) -> list[Action]:
        """Handle the end of a slot's rank, with an exit code or minus a signal."""
        slot = self._slots[number]
        session, slot.session, slot.running = slot.session, None, False
        actions: list[Action] = [ReportExit(number, status, stopped=session is None)]
        if session is not None:
            actions.append(AnswerSession(session, status))
        if slot.next:
            waiting, slot.next = slot.next, None
            actions += self._fork(number, *waiting)
        return actions

    def _fork(self, number: int, session: int, environment: Variables) -> list[Action]:
        slot = self._slots[number]
        slot.running, slot.session = True, session
        return [ForkRank(number, {**slot.variables, **rank_variables(environment)})]


def rank_variables(environment: Mapping[str, str]) -> Variables:
    """Return the variables that a launcher sets for one rank, with torch's names for the numbers of ranks."""
    variables = {name: value for name, value in environment.items() if name.startswith(_LAUNCHER_PREFIXES)}
    for name, names in (("WORLD_SIZE", _SIZE), ("LOCAL_WORLD_SIZE", _LOCAL_SIZE)):
        number = _number(environment, names)
        if number is not None:
            variables[name] = str(number)
    return variables


def _number(environment: Mapping[str, str], names: Sequence[str]) -> int | None:
    text = next((environment[name] for name in names if name in environment), "")
    return int(text) if text.isdecimal() else None
