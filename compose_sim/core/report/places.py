"""Lines of the user's code that a report points at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A line of the user's code."""

    file: Annotated[str, "The path as the ranks saw it"]
    line: Annotated[int | None, "Counted from 1"] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """A line that is often wrong in distributed scripts, found in the source before the run; never a failure."""

    place: Annotated[Place, "The line to look at"]
    text: Annotated[str, "Why"]

    def __str__(self) -> str:
        return f"{self.place.file}, line {self.place.line}: {self.text}"
