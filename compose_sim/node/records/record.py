"""The base of all records: one thing that a rank did, written by an observer in the rank and read by the checks after the run."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import ClassVar, NewType

KINDS: dict[str, type[Record]] = {}  # every record type, by the name of its kind

Moment = NewType("Moment", float)  # in Unix seconds; no other number is read
Place = tuple[str, int]  # file and line in the user's code
Shape = tuple[int, ...]

_NEXT_WORD = re.compile(r"(?<!^)(?=[A-Z])")


@dataclass(frozen=True)
class Record:
    """
    One line of a rank's observations: `{"kind": …, "t": …}` and the fields of the record.

    A field without a default is required, so a field that is added later needs a default. The three fields below are not
    arguments: they are set when a record is read.
    """

    kind: ClassVar[str] = ""  # the name of the class in lower case, its words joined by hyphens
    observers: ClassVar[
        tuple[str, ...]
    ] = ()  # without one of them it is missing or wrong: they write it, or what it counts

    rank: int = field(default=0, init=False)
    index: int = field(default=0, init=False)  # the position among all records of the rank
    t: Moment = field(default=Moment(0.0), init=False)  # when it was written

    def __init_subclass__(cls, observers: str = "") -> None:
        cls.kind = _NEXT_WORD.sub("-", cls.__name__).lower()
        cls.observers = tuple(observers.split())
        KINDS[cls.kind] = cls
