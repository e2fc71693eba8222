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


class Outermost:
    """The modules that the script itself calls, not those inside them, in the order of their first calls."""

    def __init__(self) -> None:
        self._numbers: Any = weakref.WeakKeyDictionary()  # -1 for a part of another module

    def number(self, module: Any) -> int:
        """Return the number of a module that is being called; -1 if it is a part of another one."""
        if module not in self._numbers:
            own = len(self.modules())
            for part in module.modules():
                self._numbers.setdefault(part, -1)
            self._numbers[module] = own
        return int(self._numbers[module])

    def modules(self) -> list[Any]:
        """Return those that still exist."""
        return sorted((each for each, number in self._numbers.items() if number >= 0), key=self._numbers.get)


def parameters_of(optimizer: Any) -> list[Any]:
    """Return all parameters of an optimizer, in the order of the groups."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def held_parameters() -> list[Any]:
    """Return the parameters of all optimizers that still exist."""
    return [each for optimizer, _ in optimizers.living() for each in parameters_of(optimizer)]


def numbered(optimizer: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parameters of an optimizer under the names that it has for them, such as `2 of group 0`."""
    for group_number, group in enumerate(optimizer.param_groups):
        given = group.get("param_names") or ()
        for number, parameter in enumerate(group["params"]):
            yield str(given[number]) if number < len(given) else f"{number} of group {group_number}", parameter


def local(tensor: Any) -> Any:
    """Return what this rank holds of a tensor, in the same memory: all of it, or its part of a DTensor."""
    return tensor.detach().to_local() if hasattr(tensor, "placements") else tensor.detach()


optimizers, loaders, models = Table(), Table(), Table()
