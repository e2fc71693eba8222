"""Observations of ranks that load data, made by hand for the checks of what each rank sees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.core.checks.rules.replicas import Notes

LINE = ["/work/train.py", 12]


def loader(
    *, length: int = 16, samplers: Sequence[str] = ("BatchSampler", "DistributedSampler"), **more: Any
) -> dict[str, Any]:
    facts = {"made": LINE, "at": LINE, "data": "Pictures", "length": length, "iterable": False, "batch_size": 2}
    more = {
        "drop_last": False,
        "workers": 0,
        "threshold": None,
        "fingerprint": 1,
        "set_epoch": True,
        "sampling": {},
        **more,
    }
    return {"kind": "loader", "loader": 0, "samplers": list(samplers), **facts, **more}


def epoch(
    indices: Sequence[int], *, number: int = 0, rows: Sequence[int] | None = None, size: int = 2, **more: Any
) -> Notes:
    """One epoch in batches, used up and trained on unless `more` says otherwise."""
    batches = [list(indices[at : at + size]) for at in range(0, len(indices), size)]
    held = [list((rows or indices)[at : at + size]) for at in range(0, len(indices), size)]
    whose = {"loader": 0, "epoch": number}
    facts = {
        **{
            "batches": len(batches),
            "trained": True,
            "exhausted": True,
            "forwards": len(batches),
            "order": hash(tuple(indices)),
        },
        **{"synchronised": len(batches), "drawn": len(indices), "ascending": list(indices) == sorted(indices), **more},
    }
    notes: Notes = [
        {"kind": "epoch", "phase": "begun", **whose, "trained": False, "exhausted": False, "marks": [number]}
    ]
    for at, (drawn, row) in enumerate(zip(batches, held, strict=True)):
        given = {"batch": at, "indices": drawn, "rows": row, "shape": 5, "forwards": at, "synchronised": at}
        notes.append({"kind": "batch", **whose, **given})
    return [*notes, {"kind": "epoch", "phase": "closed", **whose, **facts}]
