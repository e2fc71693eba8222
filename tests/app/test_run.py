"""How a run is followed: a second interrupt ends it at once, and a clock that somebody sets changes nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from compose_sim.app.listener import QuietListener
from compose_sim.app.run import RunLoop
from compose_sim.core.events.events import Event
from compose_sim.core.faults.commands import Fault
from compose_sim.core.faults.kind import Action
from compose_sim.core.plan.model import Plan
from compose_sim.core.state.state import ClusterState
from compose_sim.core.verdict.verdict import StopReason
from compose_sim.engine.local.engine import LocalEngine
from compose_sim.engine.protocol import NodeStatus
from compose_sim.engine.run_folder.folder import RunFolder, runs_folder
from compose_sim.node.shared.event_log import RunClock
from tests.builders import PATIENCE_S
from tests.contract.bench import MASTER, WAITS, Bench


class Slow(LocalEngine):
    """An engine that performs an act until the nodes are killed."""

    def __init__(self) -> None:
        super().__init__()
        self.at_work, self.killed, self.came_free = threading.Event(), threading.Event(), False

    def perform(self, plan: Plan, folder: RunFolder, act: Action) -> None:
        self.at_work.set()
        self.came_free = self.killed.wait(PATIENCE_S)

    def stop(self, run: str, *, grace_s: float) -> None:
        super().stop(run, grace_s=grace_s)
        if grace_s == 0:
            self.killed.set()


def test_a_second_interrupt_kills_the_nodes_while_a_fault_is_still_being_performed(tmp_path: Path) -> None:
    engine = Slow()
    bench = Bench(engine, tmp_path)
    plan = bench.start(WAITS)
    loop = RunLoop(plan, engine, RunFolder(runs_folder(bench.project) / plan.run), QuietListener())
    try:
        loop.controller.submit("fault-1", Fault(kind="pause", nodes=("node-0",)))
        assert engine.at_work.wait(PATIENCE_S)

        loop.wake_ups.wake(interrupt=True)
        loop.stop(StopReason(reason="interrupted"))

        assert engine.came_free
        assert bench.running(plan) == []
    finally:
        engine.remove(plan.run)


@pytest.mark.parametrize("jump", [7200.0, -7200.0])
def test_a_timeout_comes_in_time_although_the_clock_is_set(tmp_path: Path, jump: float) -> None:
    engine = LocalEngine()
    bench = Bench(engine, tmp_path)
    plan = replace(bench.start(WAITS), timeout_s=2.0)
    folder, began = RunFolder(runs_folder(bench.project) / plan.run), time.monotonic()
    folder.clock = RunClock(
        folder.clock.ahead, wall=lambda: time.time() + (jump if time.monotonic() > began + 0.5 else 0.0)
    )
    folder.append_event("started", {"version": "0"})
    try:
        state = RunLoop(plan, engine, folder, QuietListener()).follow()

        assert state.stopping == "timeout"
        assert 2.0 < time.monotonic() - began < PATIENCE_S
        assert len(state.notes) == 1
        assert ("ahead" if jump > 0 else "back") in state.notes[0]
    finally:
        engine.remove(plan.run)


class MasterFirst(LocalEngine):
    """An engine that reports the end of the nodes only after that of the master has been processed."""

    def __init__(self) -> None:
        super().__init__()
        self.master_seen, self.all_reported = threading.Event(), threading.Event()

    def exits(self, plan: Plan) -> Iterator[NodeStatus]:
        for status in sorted(super().exits(plan), key=lambda status: status.role != "master"):
            if status.role != "master":
                assert self.master_seen.wait(PATIENCE_S)
            yield status
        self.all_reported.set()  # and recorded: whoever iterates has come back


class SlowListener(QuietListener):
    """Takes 100 s, by the clock of the run, to show the end of the master; meanwhile the nodes end too."""

    def __init__(self, engine: MasterFirst, folder: RunFolder) -> None:
        self.engine, self.folder = engine, folder

    def show(self, events: list[Event], state: ClusterState) -> None:
        if any(event.kind == "node-stopped" and event.node == "master" for event in events):
            self.engine.master_seen.set()
            assert self.engine.all_reported.wait(PATIENCE_S)
            self.folder.clock = replace(self.folder.clock, ahead=self.folder.clock.ahead + 100.0)


def test_a_run_is_judged_by_what_was_known_when_it_was_looked_at(tmp_path: Path) -> None:
    """Much output takes long to process: what ends meanwhile has ended in time."""
    engine = MasterFirst()
    bench = Bench(engine, tmp_path)
    plan = bench.start("", master=MASTER.replace("signal.pause()", ""))
    folder = RunFolder(runs_folder(bench.project) / plan.run)
    try:
        state = RunLoop(plan, engine, folder, SlowListener(engine, folder)).follow()

        assert state.stopping == ""
        assert state.nodes["node-0"].exit_code == 0
    finally:
        engine.remove(plan.run)
