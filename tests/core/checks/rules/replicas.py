"""Observations of ranks that train one model, made by hand for the checks of whether they agree."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from compose_sim.core.checks import Case
from compose_sim.core.events.observations import Observed, parse_rank

Notes = list[dict[str, Any]]
AT = ["/work/train.py", 7]


def case(ranks: Mapping[int, Notes], verdict: str = "passed", **more: Any) -> Case:
    parsed = {rank: parse_rank("node-0", rank, [json.dumps(note) for note in notes]) for rank, notes in ranks.items()}
    return Case(observed=Observed(ranks=parsed), verdict=verdict, **more)


def ddp(ranks: Sequence[int] = (0, 1), index: int = 0, **more: Any) -> dict[str, Any]:
    names = ["weight", "bias"]
    options = {"find_unused": False, "static_graph": False, "broadcast_buffers": True, "names": names, **more}
    return {"kind": "ddp", "ddp": index, "at": ["/work/train.py", 3], "ranks": list(ranks), **options}


def forward() -> dict[str, Any]:
    return {
        "kind": "collective",
        "op": "DDP forward",
        "group": [0, 1],
        "shape": None,
        "dtype": None,
        "at": ["/work/train.py", 5],
    }


def all_reduce(*shape: int) -> dict[str, Any]:
    return {
        "kind": "collective",
        "op": "all_reduce",
        "group": [0, 1],
        "shape": list(shape),
        "dtype": "float32",
        "at": AT,
    }


def step(nth: int, optimizer: int = 0, *, backwards: int = 1, retained: int = 0, **model: Any) -> dict[str, Any]:
    models = [{"ddp": 0, "forwards": 1, "reduced": 1, "graded": 2, **model}]
    counts = {"backwards": backwards, "retained": retained}
    return {"kind": "step", "step": nth, "optimizer": optimizer, "nth": nth, "at": AT, "models": models, **counts}


def table(*names: str, kind: str = "parameter", model: int | None = 0, optimizer: int = 0) -> dict[str, Any]:
    rows = [[kind, model, name, [4, 2], "float32", "cpu"] for name in names]
    return {"kind": "tensors", "optimizer": optimizer, "table": 0, "names": rows}


def state(nth: int, *hashes: str, final: bool = False, optimizer: int = 0) -> dict[str, Any]:
    return {
        "kind": "state",
        "optimizer": optimizer,
        "nth": nth,
        "step": nth,
        "table": 0,
        "hashes": hashes,
        "final": final,
    }
