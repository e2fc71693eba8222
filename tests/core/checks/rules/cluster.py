"""Observations of two nodes of two ranks, made by hand for the checks of what lies between ranks."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from compose_sim.core.checks import Case
from compose_sim.core.events.observations import Observed, parse_rank
from tests.core.checks.rules.replicas import Notes

WORLD = [0, 1, 2, 3]


def two_nodes(notes_of: Callable[[int], Sequence[dict[str, Any]]], *, verdict: str = "passed", **more: Any) -> Case:
    """A case in which rank r noted `notes_of(r)`; ranks 0 and 1 are node-0's."""
    ranks = {}
    for rank in WORLD:
        given = {
            "rank": str(rank),
            "local_rank": str(rank % 2),
            "world_size": "4",
            "local_world_size": "2",
            "master_addr": "10.0.0.1",
        }
        notes: Notes = [{"kind": "given", **given}, *notes_of(rank)]
        lines = [json.dumps({"t": 1.0 + index / 1000, **note}) for index, note in enumerate(notes)]
        ranks[rank] = parse_rank(f"node-{rank // 2}", rank, lines)
    return Case(observed=Observed(ranks=ranks), verdict=verdict, **more)


def collective(op: str, *shape: int, line: int = 5, **more: Any) -> dict[str, Any]:
    facts = {"group": WORLD, "name": "0", "shape": list(shape), "dtype": "float32", "at": ["/work/train.py", line]}
    return {"kind": "collective", "op": op, **facts, **more}


def file(op: str, path: str = "/work/model.pt", **more: Any) -> dict[str, Any]:
    facts = {"private": path.startswith("/tmp/"), "polls": False, "sync": 0, "steps": 3, "at": ["/work/train.py", 9]}
    return {"kind": "file", "op": op, "path": path, **facts, **more}
