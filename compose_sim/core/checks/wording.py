"""Format places, ranks, names and shapes for results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from compose_sim.node.records.record import Place

_MAX_NAMES = 5


def where(at: Place | None) -> str:
    """Return " (train.py, line 7)", or "" if the place is not known."""
    return f" ({at[0].rpartition('/')[2]}, line {at[1]})" if at else ""


def ranks_text(ranks: Iterable[int]) -> str:
    """Return "rank 1" or "ranks 0, 2"."""
    listed = sorted(ranks)
    return f"rank{'s'[: len(listed) > 1]} {', '.join(map(str, listed))}"


def names_text(names: Sequence[str], count: int | None = None) -> str:
    """Return the first few names, and "…" if there are more."""
    return ", ".join(names[:_MAX_NAMES]) + (" …" if (count or len(names)) > _MAX_NAMES else "")


def shape_text(shape: Iterable[int]) -> str:
    """Return "4×2"."""
    return "×".join(map(str, shape))
