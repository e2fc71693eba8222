"""Fold the times that ranks recorded into one timeline, and divide each collective into waiting and moving data.

All ranks of a run share one clock. A collective of a group cannot begin before the last rank has reached it: until then the other
ranks wait for that rank, and afterwards data move. A rank that often reaches collectives later than the others is a straggler.
A message is a collective of two, except that who sends it need not wait.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from statistics import median_low

from compose_sim.core.events.observations import parse_rank
from compose_sim.node.records.timings import StepTimes, Wait

KINDS = ("data", "forward", "backward", "optimizer", "checkpoint", "waiting", "moving", "collective")
_SHORTEST_S = 20e-6  # a shorter wait is the resolution of the record
_Key = tuple[int, str, str, int]  # generation, group, operation, number within the group
_BETWEEN = ">"  # in the group of a message: from rank > to rank


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


@dataclass(frozen=True, slots=True)
class LineSpan:
    """A line of the script at which samples found a rank, in Unix seconds."""

    rank: int
    file: str
    line: int
    began: float
    lasted: float


@dataclass(frozen=True, slots=True)
class Message:
    """A message from one rank to another: when the sender began, and when it had arrived, in Unix seconds."""

    sender: int
    sent: float
    receiver: int
    arrived: float


@dataclass(slots=True)
class _Collective:
    """A collective, as far as its ranks have recorded it."""

    size: int
    sender: str = ""  # if it is a message
    waits: dict[int, tuple[float, float, int, str]] = field(default_factory=dict)  # by rank: began, lasted, step, what
    lines: dict[int, tuple[LineSpan, ...]] = field(default_factory=dict)  # by rank: where it was before


@dataclass(slots=True)
class RankTally:
    """What the recorded steps of one rank add up to, in seconds."""

    steps_s: float = 0.0
    data_s: float = 0.0  # of them, waiting for a data loader
    collectives: int = 0  # that all ranks of the group have recorded
    last: int = 0  # of them, those in which it was the last rank to arrive
    late_s: float = 0.0  # how much later than the median rank it arrived, in all of them
    held_up_s: float = 0.0  # how much later than all other ranks
    # Seconds at each file and line while they waited for it
    late_at: dict[tuple[str, int], float] = field(default_factory=lambda: defaultdict(float))
    last_record: tuple[int, float] = (-1, 0.0)  # step and end


class Timeline:
    """Spans become known as records arrive; those of a collective once all ranks have recorded it."""

    def __init__(self) -> None:
        self._collectives: dict[_Key, _Collective] = {}
        self.tallies: dict[int, RankTally] = {}
        self.messages: list[Message] = []
        self.lines: list[LineSpan] = []  # whoever reads on for long takes them out
        self.members: dict[tuple[int, str], set[int]] = {}  # of a group in a round, as far as ranks have recorded waits

    def add(self, rank: int, generation: int, lines: Iterable[str]) -> list[Span]:
        """Take further lines of a rank's observations, and return what is known now."""
        ours = (line for line in lines if line.startswith('{"kind":"step-times"'))
        return self.add_records(rank, generation, parse_rank("", rank, ours).of(StepTimes))

    def add_records(self, rank: int, generation: int, records: Iterable[StepTimes]) -> list[Span]:
        """Take further records of a rank, and return what is known now."""
        spans: list[Span] = []
        for record in records:
            _count(self.tallies.setdefault(rank, RankTally()), record)
            spans += (
                Span(rank, kind, record.began + began / 1e6, lasted / 1e6, record.step)
                for kind, began, lasted in record.work
                if kind in KINDS
            )
            lines = tuple(
                LineSpan(rank, file, line, record.began + began / 1e6, lasted / 1e6)
                for file, line, began, lasted in record.lines
            )
            self.lines += lines
            for wait in record.waits:
                spans += self._add_wait(rank, generation, record, wait, lines)
        return spans

    def finish(self) -> list[Span]:
        """Return the collectives that some rank never recorded; it may have been killed, or still be elsewhere."""
        spans = [span for each in self._collectives.values() for span in _divided(each)]
        self._collectives.clear()
        return spans

    def _add_wait(
        self, rank: int, generation: int, record: StepTimes, wait: Wait, lines: tuple[LineSpan, ...]
    ) -> list[Span]:
        began, lasted = record.began + wait.began / 1e6, wait.lasted / 1e6
        if wait.size <= 1:
            return [Span(rank, "collective", began, lasted, record.step, wait.what)]
        sender, is_message, _ = wait.group.partition(_BETWEEN)
        operation = "" if is_message else wait.what.partition(" ")[0]
        if not is_message:
            self.members.setdefault((generation, wait.group), set()).add(rank)
        key = (generation, wait.group, operation, wait.sequence)
        made = _Collective(wait.size, sender if is_message else "")
        collective = self._collectives.setdefault(key, made)
        collective.waits[rank] = (began, lasted, record.step, wait.what)
        collective.lines[rank] = lines
        if len(collective.waits) < collective.size:
            return []
        del self._collectives[key]
        if is_message:
            self.messages += _message(collective)
        else:
            self._count_arrivals({each: arrived for each, (arrived, *_) in collective.waits.items()}, collective.lines)
        return list(_divided(collective))

    def _count_arrivals(self, arrivals: dict[int, float], lines: dict[int, tuple[LineSpan, ...]]) -> None:
        median, last = median_low(arrivals.values()), max(arrivals, key=arrivals.__getitem__)
        before = max((arrived for rank, arrived in arrivals.items() if rank != last), default=arrivals[last])
        self.tallies[last].held_up_s += arrivals[last] - before
        for each in lines[last]:
            if (overlap := min(arrivals[last], each.began + each.lasted) - max(before, each.began)) > 0:
                self.tallies[last].late_at[each.file, each.line] += overlap
        for rank, arrived in arrivals.items():
            tally, late = self.tallies[rank], arrived - median
            tally.collectives += 1
            if late > _SHORTEST_S:
                tally.late_s += late
                tally.last += rank == last


def _count(tally: RankTally, record: StepTimes) -> None:
    """Add a record; the time between the records of two steps belongs to the later one, unless steps between them were left out."""
    tally.data_s += sum(lasted for kind, _, lasted in record.work if kind == "data") / 1e6
    ends = [each.began + each.lasted for each in record.work] + [each.began + each.lasted for each in record.waits]
    ended = record.began + max(ends, default=0) / 1e6
    step, before = tally.last_record
    tally.steps_s += max(0.0, ended - (before if 0 <= record.step - step <= 1 else record.began))
    tally.last_record = record.step, ended


def _divided(collective: _Collective) -> Iterator[Span]:
    waits = collective.waits
    late, last = max(((rank, began) for rank, (began, *_) in waits.items()), key=lambda each: each[1])
    is_complete = len(waits) == collective.size
    for rank, (began, lasted, step, what) in waits.items():
        if not is_complete:
            yield Span(rank, "collective", began, lasted, step, what)
            continue
        waited = 0.0 if str(rank) == collective.sender and began + lasted <= last else min(last - began, lasted)
        if waited > _SHORTEST_S:
            yield Span(rank, "waiting", began, waited, step, what, late)
        yield Span(rank, "moving", began + max(waited, 0.0), lasted - max(waited, 0.0), step, what)


def _message(collective: _Collective) -> Iterator[Message]:
    for sender, (sent, *_) in collective.waits.items():
        for receiver, (began, lasted, *_) in collective.waits.items():
            if str(sender) == collective.sender and sender != receiver and began + lasted >= sent:
                yield Message(sender, sent, receiver, began + lasted)
