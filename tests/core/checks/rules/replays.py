"""Records of a recorded run and of its replay, made by hand for the checks that compare them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compose_sim.core.checks import Case
from compose_sim.core.events.observations import Observed
from compose_sim.node.records.models import OptimizerStep
from compose_sim.node.records.record import Record
from compose_sim.node.records.replays import RecordedModels, RecordedStep, ReplayedStep
from tests.core.checks.rules.cluster import observe

WORLD_SIZE = 4
AT = ("/work/train.py", 31)


def recorded(*, drew: tuple[str, ...] = (), **models: Any) -> Observed:
    """Return a run of four ranks under DDP."""
    facts = {"optimizer_types": ("SGD",), "ranks": (WORLD_SIZE,), "covered": True, **models}
    records = [RecordedModels(0, **facts), RecordedStep(0, 0, drew, fetched=1), OptimizerStep(1, 0, 1, AT)]
    return Observed(ranks={rank: observe(rank, records) for rank in range(WORLD_SIZE)})


def step(
    number: int, *, ratio: float = 1.0, cosine: float = 1.0, difference: float = 1e-6, **more: Any
) -> ReplayedStep:
    """Return one repeated step."""
    rates = {"settings": ({"lr": 0.1},), "recorded_settings": ({"lr": 0.1},), "batch_size": 8, **more}
    return ReplayedStep(number, 0, "head.weight", True, False, difference, cosine, ratio, **rates)


def replayed(*records: Record) -> Observed:
    """Return a replay at world size 1."""
    return Observed(ranks={0: observe(0, records)})


def case(*records: ReplayedStep, observed: Observed | None = None, alone: Sequence[ReplayedStep] = ()) -> Case:
    """Make a case with a replay, and with one of all ranks alone if `alone` is given."""
    ranks = {rank: replayed(*(alone if rank == WORLD_SIZE - 1 else ())) for rank in range(WORLD_SIZE)} if alone else {}
    return Case(observed=observed or recorded(), verdict="passed", single=replayed(*records), alone=ranks)
