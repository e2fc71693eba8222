"""Which session asked for which rank of this node, and what becomes of it? Without sockets or processes: what happens in, acts out.

A launcher of others starts a program in a session, which asks us for a rank and waits for its end. Each local rank has a place; a
session that has gone takes its rank with it, and only when that has ended may another one have the place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...shared.decisions import Act

Variables = dict[str, str]
GRACE_SECONDS = 2.0  # between SIGTERM and SIGKILL

_LOCAL_RANK = ("HOROVOD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")
_LOCAL_SIZE = ("HOROVOD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")
_SIZE = ("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE")
# What a launcher tells its ranks. All else a rank has of its own node, as every rank of composesim does.
_TOLD = ("HOROVOD_", "OMPI_", "ORTE_", "OPAL_", "PMIX_", "PRTE_")


@dataclass(frozen=True)
class Fork(Act):
    """Start the rank of a place for a session, with these variables."""

    place: int
    variables: Variables


@dataclass(frozen=True)
class Stop(Act):
    """Send a place's rank SIGTERM, and SIGKILL if it is still there GRACE_SECONDS later."""

    place: int


@dataclass(frozen=True)
class Answer(Act):
    """Tell a session how its rank ended, or why there is none, and let it go."""

    session: int
    status: int
    why: str = ""


@dataclass(frozen=True)
class Report(Act):
    """Tell the agent that a rank has ended; `stopped` because its session had gone."""

    place: int
    status: int
    stopped: bool


@dataclass
class _Place:
    """Where one local rank runs."""

    variables: Variables
    runs: bool = False
    session: int | None = None  # whose rank runs here; None while it is stopped since its session has gone
    next: tuple[int, Variables] | None = None  # who gets the place then


class Guests:
    """The sessions of one node, and the places of its ranks."""

    def __init__(self) -> None:
        """No round has begun: sessions wait."""
        self._places: list[_Place] = []
        self._early: dict[int, Variables] = {}

    def opened(self, ranks: Sequence[Variables]) -> list[Act]:
        """A round begins: these are the variables of each local rank."""
        self._places = [
            _Place(variables, runs=old.runs) if old else _Place(variables)
            for variables, old in zip(ranks, [*self._places, *[None] * len(ranks)])
        ]
        early, self._early = self._early, {}
        return [act for session, told in early.items() for act in self.asked(session, told)]

    def asked(self, session: int, environment: Variables) -> list[Act]:
        """A session wants the rank that its environment tells of."""
        if not self._places:
            self._early[session] = environment
            return []
        number = _number(environment, _LOCAL_RANK)
        if number is None or not 0 <= number < len(self._places):
            why = f"it asked for local rank {number}, and this node has {len(self._places)}"
            return [Answer(session, 1, why)]
        place = self._places[number]
        if place.session is not None or place.next is not None:
            return [Answer(session, 1, f"local rank {number} of this node runs already")]
        if place.runs:
            place.next = (session, environment)
            return []
        return self._begin(number, session, environment)

    def left(self, session: int) -> list[Act]:
        """A session has gone, with or without its answer."""
        self._early.pop(session, None)
        for number, place in enumerate(self._places):
            if place.next and place.next[0] == session:
                place.next = None
            if place.session == session:
                place.session = None
                return [Stop(number)]
        return []

    def ended(self, number: int, status: int) -> list[Act]:
        """The rank of a place has ended: an exit code, or minus a signal."""
        place = self._places[number]
        session, place.session, place.runs = place.session, None, False
        acts: list[Act] = [Report(number, status, stopped=session is None)]
        if session is not None:
            acts.append(Answer(session, status))
        if place.next:
            waiting, place.next = place.next, None
            acts += self._begin(number, *waiting)
        return acts

    def _begin(self, number: int, session: int, environment: Variables) -> list[Act]:
        place = self._places[number]
        place.runs, place.session = True, session
        return [Fork(number, {**place.variables, **told(environment)})]


def told(environment: Mapping[str, str]) -> Variables:
    """What a launcher tells one rank: its own variables, and torch's names for how many ranks there are."""
    variables = {name: value for name, value in environment.items() if name.startswith(_TOLD)}
    for name, names in (("WORLD_SIZE", _SIZE), ("LOCAL_WORLD_SIZE", _LOCAL_SIZE)):
        number = _number(environment, names)
        if number is not None:
            variables[name] = str(number)
    return variables


def _number(environment: Mapping[str, str], names: Sequence[str]) -> int | None:
    text = next((environment[name] for name in names if name in environment), "")
    return int(text) if text.isdigit() else None
