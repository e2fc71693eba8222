"""Choose at random, but reproducibly: the same seed gives the same choices on every machine and Python version."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256


def shuffled(names: Iterable[str], *, seed: int, occasion: str) -> list[str]:
    """
    Return the names in an order that depends only on seed and occasion. The choice is the first one that is valid.

    A name that is not valid on one occasion therefore does not change the choices on others.
    """
    return sorted(names, key=lambda name: sha256(f"{seed}/{occasion}/{name}".encode()).digest())
