"""Observations of a recorded run and of its replay, made by hand for the checks that compare them."""

from __future__ import annotations

import json
from typing import Any

from compose_sim.core.checks import Case
from compose_sim.core.events.observations import Observed, parse_rank

WORLD_SIZE = 4
AT = ["/work/train.py", 31]


def recorded(*, drew: tuple[str, ...] = (), **models: Any) -> Observed:
    """A run of four ranks under DDP."""
    facts = {"kind_of_optimizer": ["SGD"], "ranks": [WORLD_SIZE], "batchnorm": [], "hooks": [], "sharded": False}
    notes = [
        {"kind": "record-models", "optimizer": 0, **facts, "covered": True, **models},
        {"kind": "record-step", "step": 0, "optimizer": 0, "drew": list(drew), "fetched": 1},
        {"kind": "step", "step": 1, "at": AT},
    ]
    lines = [json.dumps(note) for note in notes]
    return Observed(ranks={rank: parse_rank("node-0", rank, lines) for rank in range(WORLD_SIZE)})


def step(
    number: int, *, ratio: float = 1.0, cosine: float = 1.0, difference: float = 1e-6, **more: Any
) -> dict[str, Any]:
    """One repeated step."""
    settings = {"settings": [{"lr": 0.1}], "recorded_settings": [{"lr": 0.1}]}
    compared = {
        "finite": True,
        "vanished": False,
        "tensor": "head.weight",
        "norm": 1.0,
        "why_not": "",
        "precision": "float32",
    }
    seen = {"by_value": False, "clipped": False, "divisors": [], "batch_size": 8, "batches_a_step": 1.0}
    numbers = {"step": number, "optimizer": 0, "ratio": ratio, "cosine": cosine, "difference": difference}
    return {"kind": "replay", **settings, **compared, **seen, **numbers, **more}


def replayed(*notes: dict[str, Any]) -> Observed:
    """A replay at world size 1."""
    return Observed(ranks={0: parse_rank("node-0", 0, [json.dumps(note) for note in notes])})


def case(*notes: dict[str, Any], observed: Observed | None = None, alone: tuple[dict[str, Any], ...] = ()) -> Case:
    """A run, its replay with these notes, and one of all ranks alone where that was made."""
    ranks = {rank: replayed(*(alone if rank == WORLD_SIZE - 1 else ())) for rank in range(WORLD_SIZE)} if alone else {}
    return Case(observed=observed or recorded(), verdict="passed", single=replayed(*notes), alone=ranks)
