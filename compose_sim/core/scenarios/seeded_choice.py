"""Which is chosen, where a scenario leaves it to chance? The same one for the same seed, on every machine and Python."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256


def shuffled(names: Iterable[str], *, seed: int, occasion: str) -> list[str]:
    """
    The names in an order that seed and occasion alone decide: the first that may be taken is the choice.

    So a name that may not be taken at one time does not move the choices of other times.
    """
    return sorted(names, key=lambda name: sha256(f"{seed}/{occasion}/{name}".encode()).digest())
