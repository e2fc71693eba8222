"""Records of ranks that load data, made by hand for the checks of what each rank sees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compose_sim.node.records.data import Batch, EpochProgress, LoaderInfo
from tests.core.checks.rules.cluster import Records

LINE = ("/work/train.py", 12)


def loader(**more: Any) -> LoaderInfo:
    facts = {"loader": 0, "data": "Pictures", "made": LINE, "at": LINE, "length": 16, "batch_size": 2, "fingerprint": 1}
    samplers = {"samplers": ("BatchSampler", "DistributedSampler"), "set_epoch": True}
    return LoaderInfo(**{**facts, **samplers, **more})


def epoch(
    indices: Sequence[int], *, number: int = 0, rows: Sequence[int] | None = None, size: int = 2, **more: Any
) -> Records:
    """Return one epoch in batches, exhausted and trained on unless `more` says otherwise."""
    batches = [tuple(indices[at : at + size]) for at in range(0, len(indices), size)]
    held = [tuple((rows or indices)[at : at + size]) for at in range(0, len(indices), size)]
    counts = {"batches": len(batches), "forwards": len(batches), "synchronized": len(batches), "drawn": len(indices)}
    order = {"order": hash(tuple(indices)), "ascending": list(indices) == sorted(indices)}
    closed = {"phase": "closed", "trained": True, "exhausted": True, **counts, **order, **more}
    taken = [
        Batch(0, number, at, drawn, row, 5, at, at) for at, (drawn, row) in enumerate(zip(batches, held, strict=True))
    ]
    return [EpochProgress(0, number, "begun", marks=(number,)), *taken, EpochProgress(0, number, **closed)]
