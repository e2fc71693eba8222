"""When a rank did what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from .record import Moment, Record


class Activity(NamedTuple):
    """Something that a rank does on its own; times are microseconds since `StepTimes.began`."""

    kind: str  # data, forward, backward, optimizer, checkpoint
    began: int
    lasted: int


class Wait(NamedTuple):
    """Something that a rank can finish only with other ranks; times are as in `Activity`."""

    what: str  # the operation and the line of the script
    began: int
    lasted: int
    group: str  # the name of the process group; of a message "0>1", from rank 0 to rank 1
    size: int  # its ranks; 0 if they are not known
    sequence: int  # counted within the group: waits of the same number belong together


class AtLine(NamedTuple):
    """A line of the script at which samples found a rank, outside of waits; times are as in `Activity`."""

    file: str
    line: int
    began: int
    lasted: int


@dataclass(frozen=True)
class StepTimes(Record, observers="checkpoints timings"):
    """An optimizer has stepped: what the rank did until then; a long run leaves out some."""

    step: int
    began: Moment
    work: tuple[Activity, ...] = ()
    waits: tuple[Wait, ...] = ()
    queued: float = 0.0  # in the first step: seconds in which the rank could have run, but the machine ran others
    lines: tuple[AtLine, ...] = ()
