"""What can differ after a resume: the state that is missing, the evidence for it, and the fix."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from compose_sim.node.records.record import Place

# Of several that differ first at the same step, the one from which others follow is named first.
Missing = Literal[
    "restart-failed",
    "not-resumed",
    "older-checkpoint",
    "shards",
    "parameters",
    "off-by-one",
    "optimizer",
    "scheduler",
    "scaler",
    "average",
    "buffers",
    "accumulation",
    "sampler-rank",
    "sampler-position",
    "sampler-epoch",
    "random-of-rank-0",
    "random",
    "emergency-checkpoint",
    "precision",
    "unknown",
]
ORDER: tuple[Missing, ...] = get_args(Missing)


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingState:
    """One state that the resumed run lacks."""

    missing: Missing
    step: int  # of the whole run, from 1, at which it shows first
    text: str
    fix: str
    ranks: tuple[int, ...] = ()
    at: Place | None = None


def first_of(findings: Iterable[MissingState]) -> list[MissingState]:
    """Return one finding for each missing state, of all its ranks: first those that show first."""
    merged: dict[Missing, MissingState] = {}
    for each in sorted(findings, key=lambda each: (each.step, ORDER.index(each.missing))):
        known = merged.get(each.missing)
        if known is None:
            merged[each.missing] = each
        elif each.step == known.step:
            merged[each.missing] = replace(known, ranks=tuple(sorted({*known.ranks, *each.ranks})))
    return [*merged.values()]


def ranks_of(ranks: Sequence[int]) -> str:
    """Return "rank 1" or "ranks 1–3"."""
    listed = sorted(ranks)
    if len(listed) > 2 and listed[-1] - listed[0] == len(listed) - 1:
        return f"ranks {listed[0]}–{listed[-1]}"
    return f"rank{'s'[: len(listed) > 1]} {', '.join(map(str, listed))}"
