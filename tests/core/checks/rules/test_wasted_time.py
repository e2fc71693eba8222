"""Whether ranks wait for one that works alone, or reduce too often."""

from __future__ import annotations

from typing import Any

import pytest

from compose_sim.core.checks.rules.machines import wasted_time
from compose_sim.node.records.record import Record
from compose_sim.node.records.timings import StepTimes, Wait
from tests.core.checks.rules.cluster import at, case
from tests.core.checks.rules.replicas import AT, step


def waited(
    seconds: float, step: int = 1, what: str = "barrier #1 (train.py, line 7)", group: str = "0", size: int = 4
) -> Record:
    return StepTimes(step, 0.0, (), (Wait(what, 0, round(seconds * 1e6), group, size, 1),))


@pytest.mark.parametrize(
    ("seconds", "status"),
    [
        ((0.1, 8.0, 8.1, 8.2), "warned"),  # rank 0 prepares alone
        ((0.1, 8.0, 0.1, 8.2), "warned"),  # one rank of each node does
        ((0.1, 3.0, 3.0, 3.0), "passed"),
        ((8.0, 8.0, 8.0, 0.1), "warned"),
        ((0.1, 0.2, 0.1, 8.0), "passed"),  # one rank comes early
    ],
)
def test_ranks_that_wait_before_the_first_step(seconds: tuple[float, ...], status: str) -> None:
    records = {rank: [waited(each), step(1)] for rank, each in enumerate(seconds)}

    assert wasted_time.judge(case(records)).status == status


def test_a_rank_that_the_machine_does_not_run_is_not_blamed() -> None:
    def judged(queued: float) -> str:
        late = StepTimes(1, 0.0, (), (Wait("barrier #1 (train.py, line 7)", 0, 100_000, "0", 4, 1),), queued)
        return wasted_time.judge(case({rank: [waited(8.0) if rank else late, step(1)] for rank in range(4)})).status

    assert judged(4.0) == "passed"
    assert judged(0.5) == "warned"


def test_a_first_batch_that_loads_slowly_is_no_preparation() -> None:
    wait = "DDP's gradient all-reduce in backward (train.py, line 9)"
    records = {rank: [waited(8.0 * (rank > 0), what=wait), step(1)] for rank in range(4)}

    assert wasted_time.judge(case(records)).status == "passed"


def test_the_first_message_of_a_pipeline_is_no_preparation() -> None:
    sends = waited(0.1, what="send (train.py, line 8)", group="0>1", size=0)
    receives = waited(8.0, what="recv (train.py, line 9)", group="0>1", size=0)

    assert wasted_time.judge(case({0: [sends, step(1)], 1: [receives, step(1)]})).status == "passed"


def test_waits_during_training_are_not_judged() -> None:
    assert (
        wasted_time.judge(case({rank: [step(1), waited(9.0 * rank, step=5)] for rank in range(4)})).status == "passed"
    )


@pytest.mark.parametrize(
    ("counts", "status"),
    [
        ({"backwards": 4, "forwards": 4, "reduced": 4}, "warned"),
        ({"backwards": 4, "forwards": 4, "reduced": 1}, "passed"),  # no_sync
        ({"backwards": 6, "forwards": 6, "reduced": 5}, "passed"),  # no_sync on the wrong one
        ({"backwards": 4, "forwards": 4, "reduced": 4, "retained": 4}, "passed"),  # several losses of one graph
        ({"backwards": 4, "forwards": 4, "reduced": 4, "within": 4}, "passed"),  # the optimizer's closure
        ({"backwards": 2, "forwards": 2, "reduced": 2}, "passed"),  # two losses, as of a GAN's discriminator
    ],
)
def test_every_micro_step_is_reduced(counts: dict[str, Any], status: str) -> None:
    result = wasted_time.judge(case({rank: [step(nth, **counts) for nth in range(1, 5)] for rank in range(2)}))

    assert (result.status, at(result)) == (status, AT if status == "warned" else None)
