"""Does a run end at once for somebody who wants its end once more?"""

from __future__ import annotations

import threading
from pathlib import Path

from compose_sim.app.run import _stop
from compose_sim.core.faults import Act
from compose_sim.core.faults.commands import Fault
from compose_sim.core.plan.model import Plan
from compose_sim.core.verdict.verdict import StopReason
from compose_sim.engine.control.fault_controller import Performer
from compose_sim.engine.lifetime.interrupts import WakeUps
from compose_sim.engine.local.engine import LocalEngine
from compose_sim.engine.run_folder.folder import RunFolder, runs_folder
from tests.builders import PATIENCE_S
from tests.contract.bench import WAITS, Bench


class Slow(LocalEngine):
    """An engine that is not done with what it does before the nodes are killed."""

    def __init__(self) -> None:
        super().__init__()
        self.at_work, self.killed, self.came_free = threading.Event(), threading.Event(), False

    def perform(self, plan: Plan, folder: RunFolder, act: Act) -> None:
        self.at_work.set()
        self.came_free = self.killed.wait(PATIENCE_S)

    def stop(self, run: str, *, grace_s: float) -> None:
        super().stop(run, grace_s=grace_s)
        if grace_s == 0:
            self.killed.set()


def test_whoever_wants_the_end_once_more_waits_for_nothing_that_is_under_way(tmp_path: Path) -> None:
    engine = Slow()
    bench = Bench(engine, tmp_path)
    plan = bench.start(WAITS)
    folder, wake_ups = RunFolder(runs_folder(bench.project) / plan.run), WakeUps()
    performer = Performer(plan, engine, folder)
    try:
        performer.submit("fault-1", Fault(kind="pause", nodes=("node-0",)))
        assert engine.at_work.wait(PATIENCE_S)

        wake_ups.wake(interrupt=True)
        _stop(plan, engine, folder, StopReason(reason="interrupted"), performer, wake_ups)

        assert engine.came_free
        assert bench.running(plan) == []
    finally:
        engine.remove(plan.run)
