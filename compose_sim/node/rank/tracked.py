"""Number the optimizers, loaders and models of a rank, each kind in the order in which the script makes them.

All records of one rank, and those of the replay on one rank, know an object by the same number. Objects that torch did not make by
calling a constructor, such as copies and those that were pickled, get theirs when they are first used.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any


class Table:
    """The objects of one kind: weak references, by id, since an object may not be hashable, or equal another."""

    def __init__(self) -> None:
        self.made = 0  # so far
        self._known: dict[int, tuple[Any, int]] = {}

    def number(self, thing: Any) -> int:
        """Return the number of an object, which is the next one if the object has none yet."""
        known = self._known.get(id(thing))
        if known is None or known[0]() is not thing:
            known = self._known[id(thing)] = weakref.ref(thing), self.made
            self.made += 1
        return known[1]

    def living(self) -> Iterator[tuple[Any, int]]:
        """Yield the objects that still exist, with their numbers."""
        for reference, number in list(self._known.values()):
            thing = reference()
            if thing is not None:
                yield thing, number


optimizers, loaders, models = Table(), Table(), Table()
