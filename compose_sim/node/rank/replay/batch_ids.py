"""Identify a batch in two runs of one script, such as the third batch of the second passage over the first DataLoader.

Loaders are numbered when they are first iterated, not when they are made: libraries make new ones, and not at every world size.
"""

from __future__ import annotations

import difflib
import json
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import tracked


@dataclass
class Passage:
    """One iteration over a loader: how many batches it gave, and the steps and backward passes before the first of them."""

    loader: int
    number: int
    batches: int = 0
    first_step: int = 0
    last_step: int = 0
    backwards: int = 0
    ended: bool = False
    evaluated: bool = False  # whether it ended with no backward pass since the first batch
    sizes: dict[int, int] = field(default_factory=dict)
    files: dict[int, str] = field(default_factory=dict)
    indices: dict[int, list[int]] = field(default_factory=dict)
    samples: dict[int, list[int]] = field(default_factory=dict)  # by their numbers in the whole data set
    base: list[Any] = field(default_factory=list)  # the type of that, and its length
    random: list[int] = field(default_factory=list)  # a hash of each global generator at the beginning

    @property
    def key(self) -> tuple[int, int]:
        return self.loader, self.number


class LoaderNumbers:
    """Number the loaders and passages of this process."""

    def __init__(self) -> None:
        self._number: Any = weakref.WeakKeyDictionary()
        self._passages: dict[int, int] = {}

    def begin(self, loader: Any) -> tuple[Passage, bool]:
        """Begin a passage; return it, and whether it is the loader's first."""
        number = self._number.get(loader)
        is_first = number is None
        if is_first:
            number = self._number[loader] = len(self._passages)
            self._passages[number] = 0
        passage = Passage(loader=number, number=self._passages[number])
        self._passages[number] += 1
        return passage, is_first

    def number_of(self, loader: Any) -> int | None:
        """Return the loader's number; None before its first passage."""
        return self._number.get(loader)  # type: ignore[no-any-return]

    def facts(self, loader: Any, length: int | None) -> dict[str, Any]:
        """Return what identifies a loader before it is iterated."""
        return {
            "created": tracked.loaders.number(loader),
            "dataset": type(getattr(loader, "dataset", None)).__qualname__,
            "length": length,
        }


@dataclass
class RankRecord:
    """What one rank recorded about its loaders and steps."""

    passages: dict[tuple[int, int], Passage] = field(default_factory=dict)
    loaders: dict[int, dict[str, Any]] = field(default_factory=dict)
    steps: list[dict[str, Any]] = field(default_factory=list)
    completed: bool = False  # whether these are all steps of the script, which has ended


def read_record(folder: Path) -> list[RankRecord]:
    """Read what all ranks recorded, by rank."""
    files = sorted(folder.glob("*.jsonl"), key=lambda path: int(path.stem))
    return [_read_rank(map(json.loads, path.read_text().splitlines())) for path in files]


def _read_rank(lines: Iterable[dict[str, Any]]) -> RankRecord:
    record = RankRecord()
    for line in lines:
        if "facts" in line:
            record.loaders[line["loader"]] = line["facts"]
        elif "optimizer" in line:
            record.steps.append(line)
        elif "completed" in line:
            record.completed = True
        else:
            key = line["loader"], line["passage"]
            passage = record.passages.setdefault(key, Passage(*key, first_step=line["step"], last_step=line["step"]))
            if "batch" in line:
                passage.batches, passage.last_step = line["batch"] + 1, line["step"]
                passage.sizes[line["batch"]] = line["size"]
                if line["indices"]:
                    passage.indices[line["batch"]] = line["indices"]
                if line.get("samples"):
                    passage.samples[line["batch"]] = line["samples"]
                if line["file"]:
                    passage.files[line["batch"]] = line["file"]
            passage.base, passage.random = line.get("base", passage.base), line.get("random", passage.random)
            passage.ended |= bool(line.get("ended"))
            passage.evaluated |= bool(line.get("evaluated"))
    return record


def aligned(records: list[RankRecord]) -> dict[tuple[int, int], dict[int, Passage]]:
    """
    Return, for each passage of rank 0, the corresponding ones of the other ranks.

    A rank may look into a loader once more than the others do: passages correspond if they began and ended at the same steps.
    """
    own = list(records[0].passages.values())
    found: dict[tuple[int, int], dict[int, Passage]] = {passage.key: {0: passage} for passage in own}
    for rank, record in enumerate(records[1:], start=1):
        theirs = list(record.passages.values())
        matcher = difflib.SequenceMatcher(a=_places(records[0], record), b=_places(record, records[0]), autojunk=False)
        for block in matcher.get_matching_blocks():
            for one, other in zip(own[block.a : block.a + block.size], theirs[block.b : block.b + block.size]):
                found[one.key][rank] = other
    return found


def _places(record: RankRecord, other: RankRecord) -> list[tuple[Any, int, bool]]:
    """Return what corresponding passages of two ranks have in common: the loader, and the steps around them."""
    known = {number: _made(facts) for number, facts in record.loaders.items()}
    # Compare loaders by the order in which they were made, unless one rank has loaders that the other does not.
    same = set(known.values()) == {_made(facts) for facts in other.loaders.values()}
    return [
        (known.get(each.loader) if same else each.loader, each.first_step, each.last_step > each.first_step)
        for each in record.passages.values()
    ]


def _made(facts: dict[str, Any]) -> tuple[Any, Any]:
    return facts["created"], facts["dataset"]
