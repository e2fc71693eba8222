"""Phrase what results have in common: places, ranks and names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from compose_sim.core.events.observations import Observed
from compose_sim.node.records.gradients import ParameterNames
from compose_sim.node.records.record import Place

_MOST_NAMES = 5
_NUMBERED = re.compile(r"\b\d+ of group \d+\b")


def where(at: Place | None) -> str:
    """Return " (train.py, line 7)", or "" if the place is not known."""
    return f" ({at[0].rpartition('/')[2]}, line {at[1]})" if at else ""


def ranks_text(ranks: Iterable[int]) -> str:
    """Return "rank 1" or "ranks 0, 2"."""
    listed = sorted(ranks)
    return f"rank{'s'[: len(listed) > 1]} {', '.join(map(str, listed))}"


def names_text(names: Sequence[str], count: int | None = None) -> str:
    """Return the first few names, and "…" if there are more."""
    return ", ".join(names[:_MOST_NAMES]) + (" …" if (count or len(names)) > _MOST_NAMES else "")


def parameter_names(observed: Observed) -> dict[str, str]:
    """Return the names of parameters that are otherwise known by numbers, if all ranks and optimizers agree on them."""
    found: dict[str, set[str]] = {}
    for each in observed.of(ParameterNames):
        for number, name in each.names:
            found.setdefault(number, set()).add(name)
    return {number: names.pop() for number, names in found.items() if len(names) == 1}


def with_names(text: str, names: Mapping[str, str]) -> str:
    """Return the text with names in place of `2 of group 0`."""
    return _NUMBERED.sub(lambda found: names.get(found[0], found[0]), text)
