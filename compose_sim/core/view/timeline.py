"""Fold the times that ranks recorded into one timeline, and divide each collective into waiting and moving data.

All ranks of a run share one clock. A collective of a group cannot begin before the last rank has reached it: until then the other
ranks wait for that rank, and afterwards data move.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from compose_sim.core.events.observations import parse_rank
from compose_sim.node.records.timings import StepTimes, Wait

KINDS = ("data", "forward", "backward", "optimizer", "waiting", "moving", "collective")
_SHORTEST_S = 20e-6  # a shorter wait is the resolution of the record
_Key = tuple[int, str, str, int]  # generation, group, operation, number within the group


@dataclass(frozen=True, slots=True)
class Span:
    """Something that one rank did, in Unix seconds."""

    rank: int
    kind: str  # one of KINDS; `collective` is one whose other ranks are not known
    began: float
    lasted: float
    step: int
    what: str = ""
    late: int | None = None  # the rank for which a rank waited


@dataclass(slots=True)
class _Collective:
    """A collective, as far as its ranks have recorded it."""

    size: int
    waits: dict[int, tuple[float, float, int, str]] = field(default_factory=dict)  # by rank: began, lasted, step, what


class Timeline:
    """Spans become known as records arrive; those of a collective once all ranks have recorded it."""

    def __init__(self) -> None:
        self._collectives: dict[_Key, _Collective] = {}

    def add(self, rank: int, generation: int, lines: Iterable[str]) -> list[Span]:
        """Take further lines of a rank's observations, and return what is known now."""
        spans: list[Span] = []
        ours = (line for line in lines if line.startswith('{"kind":"step-times"'))
        for record in parse_rank("", rank, ours).of(StepTimes):
            spans += (
                Span(rank, kind, record.began + began / 1e6, lasted / 1e6, record.step)
                for kind, began, lasted in record.work
                if kind in KINDS
            )
            for wait in record.waits:
                spans += self._add_wait(rank, generation, record, wait)
        return spans

    def finish(self) -> list[Span]:
        """Return the collectives that some rank never recorded; it may have been killed, or still be elsewhere."""
        spans = [span for each in self._collectives.values() for span in _divided(each)]
        self._collectives.clear()
        return spans

    def _add_wait(self, rank: int, generation: int, record: StepTimes, wait: Wait) -> list[Span]:
        began, lasted = record.began + wait.began / 1e6, wait.lasted / 1e6
        if wait.size <= 1:
            return [Span(rank, "collective", began, lasted, record.step, wait.what)]
        operation = wait.what.partition(" ")[0]
        key = (generation, wait.group, operation, wait.sequence)
        collective = self._collectives.setdefault(key, _Collective(wait.size))
        collective.waits[rank] = (began, lasted, record.step, wait.what)
        if len(collective.waits) < collective.size:
            return []
        return list(_divided(self._collectives.pop(key)))


def _divided(collective: _Collective) -> Iterator[Span]:
    waits = collective.waits
    late, last = max(((rank, began) for rank, (began, *_) in waits.items()), key=lambda each: each[1])
    is_complete = len(waits) == collective.size
    for rank, (began, lasted, step, what) in waits.items():
        if not is_complete:
            yield Span(rank, "collective", began, lasted, step, what)
            continue
        waited = min(last - began, lasted)
        if waited > _SHORTEST_S:
            yield Span(rank, "waiting", began, waited, step, what, late)
        yield Span(rank, "moving", began + max(waited, 0.0), lasted - max(waited, 0.0), step, what)
