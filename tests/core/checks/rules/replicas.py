"""Records of ranks that train one model, made by hand for the checks of whether they agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compose_sim.node.records.models import (
    DdpModel,
    OptimizerStep,
    SteppedModel,
    TensorHashes,
    TensorRow,
    TensorTable,
)
from compose_sim.node.records.process_groups import Collective, DdpForward

AT = ("/work/train.py", 7)


def ddp(ranks: Sequence[int] = (0, 1), index: int = 0, **more: Any) -> DdpModel:
    return DdpModel(index, tuple(ranks), names=("weight", "bias"), at=("/work/train.py", 3), **more)


def forward() -> DdpForward:
    return DdpForward(0, (0, 1), ("/work/train.py", 5))


def all_reduce(*shape: int, **more: Any) -> Collective:
    return Collective(**{"op": "all_reduce", "group": (0, 1), "shapes": (shape,), "dtype": "float32", "at": AT, **more})


def step(
    nth: int, optimizer: int = 0, *, backwards: int = 1, retained: int = 0, within: int = 0, **model: Any
) -> OptimizerStep:
    models = (SteppedModel(**{"ddp": 0, "forwards": 1, "reduced": 1, "graded": 2, **model}),)
    return OptimizerStep(nth, optimizer, nth, AT, models, backwards, retained, within=within)


def table(*names: str, kind: str = "parameter", model: int | None = 0, optimizer: int = 0) -> TensorTable:
    return TensorTable(optimizer, 0, tuple(TensorRow(kind, model, name, (4, 2), "float32", "cpu") for name in names))


def state(nth: int, *hashes: str, final: bool = False, optimizer: int = 0) -> TensorHashes:
    return TensorHashes(optimizer, nth, 0, hashes, final)
