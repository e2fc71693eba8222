"""Read the records that ranks wrote (`node/records`), and drop those that are no record of a known kind."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from functools import cache, cached_property
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints, overload

from compose_sim.core.events.events import bounded_integer
from compose_sim.core.text import without_temporary_folder
from compose_sim.node.records import KINDS
from compose_sim.node.records.record import Moment, Record
from compose_sim.node.records.script import LaunchEnvironment

A = TypeVar("A", bound=Record)
B = TypeVar("B", bound=Record)
C = TypeVar("C", bound=Record)
_MAX_MOMENT = 1e11  # Unix seconds, in the year 5138
Reader = Callable[[Any], Any]  # takes a value of JSON, returns that of a field; raises TypeError or ValueError


class _Records:
    """Look up records by type, of which none has subtypes."""

    looked_at: set[type[Record]] | None  # the types that were looked up, if they are collected

    @cached_property
    def _by_kind(self) -> Mapping[type[Record], Sequence[Record]]:
        found: dict[type[Record], list[Record]] = {}
        for each in self.all():
            found.setdefault(type(each), []).append(each)
        return found

    def all(self) -> Sequence[Record]:
        """Return all records in order."""
        raise NotImplementedError

    @overload
    def of(self, kind: type[A], /) -> Iterator[A]: ...
    @overload
    def of(self, kind: type[A], other: type[B], /) -> Iterator[A | B]: ...
    @overload
    def of(self, kind: type[A], other: type[B], third: type[C], /) -> Iterator[A | B | C]: ...
    @overload
    def of(self, *kinds: type[Record]) -> Iterator[Record]: ...
    def of(self, *kinds: type[Record]) -> Iterator[Record]:
        """Yield the records of these kinds, in order."""
        if self.looked_at is not None:
            self.looked_at.update(kinds)
        if len(kinds) == 1:
            return iter(self._by_kind.get(kinds[0], ()))
        return (each for each in self.all() if type(each) in kinds)

    def first(self, kind: type[A]) -> A | None:
        """Return the first record of this kind."""
        return next(self.of(kind), None)

    @overload
    def last(self, kind: type[A], /) -> A | None: ...
    @overload
    def last(self, *kinds: type[Record]) -> Record | None: ...
    def last(self, *kinds: type[Record]) -> Record | None:
        """Return the last record of these kinds."""
        if self.looked_at is not None:
            self.looked_at.update(kinds)
        return next((each for each in reversed(self.all()) if type(each) in kinds), None)


@dataclass(frozen=True, kw_only=True)
class RankObserved(_Records):
    """Everything that one rank observed in the last round of the run."""

    rank: int
    node: str
    local_rank: int = 0
    records: tuple[Record, ...] = ()
    dropped: int = 0  # lines that were torn by a crash, are of an unknown kind, or hold values of the wrong type
    looked_at: set[type[Record]] | None = field(default=None, compare=False)

    def all(self) -> Sequence[Record]:
        return self.records


@dataclass(frozen=True, kw_only=True)
class Observed(_Records):
    """What the ranks of a run observed, by rank; empty if nothing was."""

    ranks: Mapping[int, RankObserved]
    looked_at: set[type[Record]] | None = field(default=None, compare=False)

    def watched(self) -> Observed:
        """Return the same, noting in `looked_at` which types of records are looked up."""
        looked_at: set[type[Record]] = set()
        ranks = {rank: replace(each, looked_at=looked_at) for rank, each in self.ranks.items()}
        return Observed(ranks=ranks, looked_at=looked_at)

    def __iter__(self) -> Iterator[RankObserved]:
        """Iterate over the ranks in order."""
        return (self.ranks[rank] for rank in sorted(self.ranks))

    def all(self) -> Sequence[Record]:
        return self._all

    @cached_property
    def _all(self) -> Sequence[Record]:
        return [each for rank in self for each in rank.records]

    @property
    def world_size(self) -> int:
        """How many ranks observed anything."""
        return len(self.ranks)

    @property
    def nodes(self) -> Mapping[str, tuple[int, ...]]:
        """The ranks of each node."""
        names = dict.fromkeys(rank.node for rank in self)
        return {name: tuple(rank.rank for rank in self if rank.node == name) for name in names}


def parse_rank(node: str, rank: int, lines: Iterable[str]) -> RankObserved:
    """Read the lines of one rank's file."""
    found: list[Record] = []
    dropped = 0
    for line in lines:
        try:
            record = _parse(line)
        except (TypeError, ValueError, OverflowError, RecursionError):
            dropped += 1
            continue
        vars(record).update(rank=rank, index=len(found))
        found.append(record)
    launched = next((each for each in found if isinstance(each, LaunchEnvironment)), None)
    local_rank = (launched.local_rank or 0) if launched else 0
    return RankObserved(rank=rank, node=node, local_rank=local_rank, records=tuple(found), dropped=dropped)


def _parse(line: str) -> Record:
    values = json.loads(without_temporary_folder(line), parse_int=bounded_integer)
    if not isinstance(values, dict) or values.get("kind") not in KINDS:
        raise ValueError("not a record of a known kind")
    kind: Any = KINDS[values["kind"]]
    record: Record = _reader_of(kind)(values)
    vars(record)["t"] = _moment(values.get("t", 0.0))
    return record


@cache
def _reader_of(hint: Any) -> Reader:
    """Return what reads a value of this type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if is_dataclass(hint) and isinstance(hint, type):
        return _dataclass_reader(hint)
    if origin is Literal:
        return lambda value: _checked(value in arguments, value)
    if origin in (Union, UnionType):
        (inner,) = (_reader_of(each) for each in arguments if each is not type(None))
        return lambda value: None if value is None else inner(value)
    if origin is dict:
        of_value = _reader_of(arguments[1])
        return lambda value: {key: of_value(each) for key, each in _of_type(dict, value).items()}
    if origin is tuple and arguments[-1] is Ellipsis and arguments[0] in (int, str):  # most of what is read
        return lambda value: _checked({*map(type, _of_type(list, value))} <= {arguments[0]}, tuple(value))
    if origin is tuple and arguments[-1] is Ellipsis:
        of_each = _reader_of(arguments[0])
        return lambda value: tuple(map(of_each, _of_type(list, value)))
    if origin is tuple:
        return _tuple_reader(tuple, arguments)
    if isinstance(hint, type) and issubclass(hint, tuple):  # a NamedTuple
        return _tuple_reader(hint._make, tuple(get_type_hints(hint).values()))  # type: ignore[attr-defined]
    if hint in _NUMBERS:
        return _NUMBERS[hint]
    return lambda value: _of_type(hint, value)


def _dataclass_reader(kind: type[Any]) -> Reader:
    """Read a JSON object field by field; unknown fields are ignored, missing ones take their defaults."""
    hints = get_type_hints(kind)
    own = [each for each in fields(kind) if each.init]
    readers = {each.name: _reader_of(hints[each.name]) for each in own}
    required = {each.name for each in own if each.default is MISSING and each.default_factory is MISSING}

    def read(value: Any) -> Any:
        given = {name: readers[name](each) for name, each in _of_type(dict, value).items() if name in readers}
        _checked(required <= given.keys(), value)
        return kind(**given)

    return read


def _tuple_reader(make: Callable[[Iterable[Any]], Any], hints: tuple[Any, ...]) -> Reader:
    readers = [_reader_of(each) for each in hints]
    return lambda value: make(read(each) for read, each in zip(readers, _of_type(list, value), strict=True))


def _of_type(kind: type[Any], value: Any) -> Any:
    return _checked(type(value) is kind, value)  # not isinstance: a bool is no int


def _float(value: Any) -> float:
    return float(_checked(type(value) in (int, float), value))


def _moment(value: Any) -> float:
    moment = _float(value)
    return float(_checked(abs(moment) < _MAX_MOMENT, moment))  # NaN is not


_NUMBERS: Mapping[Any, Reader] = {float: _float, Moment: _moment}


def _checked(is_right: bool, value: Any) -> Any:
    if not is_right:
        raise TypeError(f"an unexpected value of type {type(value).__name__}")
    return value
