"""The report of a preemption names the checkpoint that was complete after SIGTERM, and no other file."""

from __future__ import annotations

import pytest

from compose_sim.core.checks.rules.checkpoints import with_checkpoints
from compose_sim.core.events.observations import Observed
from compose_sim.core.report.report import FaultReport, RoundReport, Timings
from compose_sim.node.records.devices_and_files import FileUse
from tests.builders import a_report
from tests.core.checks.rules.cluster import observe

STARTED = 1000.0
SAVED = [("written", "/p/old.pt", None, 1.0), ("written", "/p/new", None, 11.0), ("rename", "/p/new", "/p/c.pt", 11.5)]


@pytest.mark.parametrize(
    ("begun_s", "found"),
    [(0.5, ("/p/c.pt", 11.0)), (10.0, ("/p/c.pt", 1.5)), (12.0, (None, None))],
)
def test_the_last_complete_file_after_the_notice_is_the_checkpoint(
    begun_s: float, found: tuple[str | None, float | None]
) -> None:
    uses = [FileUse(op, path, to=to) for op, path, to, _ in SAVED] + [FileUse("write", "/p/log.txt")]  # type: ignore[arg-type]
    rank = observe(0, uses)
    for use, (*_, t) in zip(rank.records, [*SAVED, (0, 0, 0, 20.0)], strict=True):
        vars(use).update(t=STARTED + t)
    report = a_report(
        timings=Timings(started_at=STARTED),
        faults=(
            FaultReport(id="fault-1", kind="preempt", begun_s=begun_s),
            FaultReport(id="fault-2", kind="term", begun_s=begun_s),
        ),
        rounds=(
            RoundReport(generation=3, world_size=2, began_s=0.2),
            RoundReport(generation=4, world_size=1, began_s=30.0),
        ),
    )
    asked: list[int] = []

    def observed_in(generation: int) -> Observed:
        asked.append(generation)
        return Observed(ranks={0: rank})

    preempted, other = with_checkpoints(report, observed_in).faults

    assert (preempted.checkpoint, preempted.checkpoint_s) == found
    assert (other.checkpoint, asked) == (None, [3])
