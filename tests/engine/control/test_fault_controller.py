"""Requests from any shell are executed once and in order, reported, and undone in time. Real nodes of the local engine, no torch."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compose_sim.core.events.events import Event, parse_event
from compose_sim.core.faults.commands import DumpRanks, Fault, Heal, Intervention, Scale
from compose_sim.core.faults.kind import Action, Start
from compose_sim.core.plan.model import Plan
from compose_sim.engine.control.fault_controller import FaultController
from compose_sim.engine.local.engine import LocalEngine
from compose_sim.engine.run_folder.control_requests import send_request
from compose_sim.engine.run_folder.folder import RunFolder, runs_folder
from compose_sim.engine.run_folder.safe_files import write_file
from compose_sim.errors import EngineError, SpecError
from tests.builders import an_event
from tests.contract.bench import COUNTS, WAITS, Bench, until


class Run:
    """A run with a fault controller; `ask` acts as another shell."""

    def __init__(self, bench: Bench, plan: Plan) -> None:
        self.bench, self.plan = bench, plan
        self.folder = RunFolder(runs_folder(bench.project) / plan.run)
        self.controller = FaultController(plan, bench.engine, self.folder)

    def ask(self, intervention: Intervention, request: str = "r") -> list[Event]:
        return send_request(self.folder, intervention, request)

    def events(self, *kinds: str) -> list[tuple[str, ...]]:
        """Return kind, id and phase of composesim's events."""
        path = self.folder.path / "journal" / "composesim.jsonl"
        events = map(parse_event, path.read_text().splitlines() if path.exists() else ())
        told = [(event.kind, event.data["id"], event.data.get("phase", "")) for event in events if event]
        return [each for each in told if each[0] in kinds] if kinds else told

    def absent(self) -> list[str]:
        return sorted(path.name for path in (self.folder.path / "control" / "absent").glob("*"))

    def running(self) -> list[str]:
        return [name for name in self.bench.running(self.plan) if name != "master"]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(LocalEngine(), tmp_path)
    yield bench
    for run in bench.runs:
        bench.engine.remove(run)


def started(bench: Bench, *programs: str, **changes: Any) -> Run:
    return Run(bench, bench.start(*programs, **changes))


def test_a_killed_node_comes_back_in_time_and_its_mark_goes_with_the_next_round(bench: Bench) -> None:
    run = started(bench, WAITS, WAITS)
    seen = [event.data["phase"] for event in run.ask(Fault(kind="kill", nodes=("node-1",)), "fault-1")]
    assert (seen, run.running(), run.absent()) == (["begun", "done"], ["node-0"], ["node-1"])

    run.ask(Fault(kind="stop", nodes=("node-0",), for_s=0.01), "fault-2")
    until(lambda: ("heal", "fault-2", "done") in run.events())
    run.ask(Heal(target="node-1"), "heal-1")

    until(lambda: run.running() == ["node-0", "node-1"])
    assert run.events() == [
        *(("fault", "fault-1", phase) for phase in ("begun", "done")),
        *(("fault", "fault-2", phase) for phase in ("begun", "done")),
        *(("heal", "fault-2", phase) for phase in ("begun", "done")),
        *(("heal", "fault-1", phase) for phase in ("begun", "done")),
    ]
    run.controller.observe([an_event("round", 0.0, nodes=["node-0", "node-1"])])  # an old one
    assert "node-1" in run.absent()
    run.controller.observe([an_event("round", 9e9, nodes=["node-0", "node-1"])])
    assert run.absent() == []
    run.controller.close()


def test_what_cannot_be_done_is_refused_and_changes_nothing(bench: Bench) -> None:
    run = started(bench, WAITS)

    for nonsense in (Heal(), Heal(target="fault-7"), Fault(kind="kill", nodes=("node-5",)), Scale(nodes=2)):
        with pytest.raises(SpecError):
            run.ask(nonsense)
    with pytest.raises(SpecError, match="'cpu' is not supported on the local engine"):
        run.ask(Fault(kind="cpu", nodes=("node-0",), options={"limit": 0.5}))

    assert (run.events(), run.running(), run.absent()) == ([("refused", "r", "")] * 5, ["node-0"], [])
    run.controller.close()


def test_a_run_that_ends_refuses_what_the_user_waits_for_and_not_its_own_question(bench: Bench) -> None:
    run = started(bench, WAITS)
    run.controller.cancel()
    run.controller.submit("time-limit-1", DumpRanks())
    run.controller.submit("fault-1", Fault(kind="stop", nodes=("node-0",)))

    run.controller.close()

    assert run.events() == [("refused", "fault-1", "")]


def test_nodes_leave_and_come_by_scaling(bench: Bench) -> None:
    run = Run(bench, replace(bench.start(WAITS, WAITS, WAITS, initial_node_count=2), elastic=(1, 3)))

    run.ask(Scale(nodes=1), "scale-1")
    run.ask(Scale(nodes=3), "scale-2")

    until(lambda: run.running() == ["node-0", "node-1", "node-2"])
    assert run.events("scale") == [("scale", "scale-1", ""), ("scale", "scale-2", "")]
    run.controller.close()


class Narrow(LocalEngine):
    """An engine that has no room for a third node."""

    def perform(self, plan: Plan, folder: RunFolder, act: Action) -> None:
        if isinstance(act, Start) and act.node == "node-2":
            raise EngineError("there is no room for it")
        super().perform(plan, folder, act)


def test_a_size_that_cannot_be_had_leaves_the_size_that_was(bench: Bench) -> None:
    bench.engine = Narrow()
    run = Run(bench, replace(bench.start(WAITS, WAITS, WAITS, initial_node_count=1), elastic=(1, 3)))

    with pytest.raises(EngineError, match="there is no room for it"):
        run.ask(Scale(nodes=3), "scale-1")
    assert run.events() == [("scale", "scale-1", ""), ("scale", "scale-1", ""), ("refused", "scale-1", "")]
    until(lambda: run.running() == ["node-0"])

    told = run.ask(Scale(nodes=2), "scale-2")
    assert [event.data["names"] for event in told] == [["node-0", "node-1"]]
    until(lambda: run.running() == ["node-0", "node-1"])
    run.controller.close()


def test_a_request_that_cannot_be_read_keeps_no_other_from_being_done(bench: Bench) -> None:
    run = started(bench, WAITS)
    (run.folder.path / "requests" / "0.folder.json").mkdir(parents=True)
    write_file(run.folder.path / "requests" / "1.odd.json", "[" * 200_000)
    until(lambda: ("refused", "odd", "") in run.events())

    run.ask(Fault(kind="kill", nodes=("node-0",)), "fault-1")

    assert run.running() == []
    run.controller.close()


def test_a_restart_heals_what_killed_the_node(bench: Bench) -> None:
    run = started(bench, WAITS, WAITS)
    run.ask(Fault(kind="kill", nodes=("node-1",)), "fault-1")

    run.ask(Fault(kind="restart", nodes=("node-1",)), "fault-2")

    assert run.running() == ["node-0", "node-1"]
    assert run.events("heal") == [("heal", "fault-1", "begun"), ("heal", "fault-1", "done")]
    run.controller.close()


def test_the_end_of_a_run_lets_held_nodes_go_and_refuses_what_waits(bench: Bench) -> None:
    """The agents here ignore commands, so the second fault waits for an answer until the end."""
    run = started(bench, COUNTS, WAITS)
    run.ask(Fault(kind="pause", nodes=("node-0",)), "fault-1")
    held = bench.counted(run.plan, "node-0")
    run.controller.submit("fault-2", Fault(kind="rank-raise", rank=1))
    until(lambda: ("fault", "fault-2", "begun") in run.events())
    refusals: list[str] = []

    def ask_late() -> None:
        try:
            run.ask(Heal(), "heal-1")
        except EngineError as error:
            refusals.append(error.message)

    late = threading.Thread(target=ask_late)
    late.start()
    until(lambda: any((run.folder.path / "requests").glob("*.json")))
    run.controller.close()
    late.join()

    assert refusals == ["the run is ending"]
    until(lambda: bench.counted(run.plan, "node-0") > held)


def test_an_order_is_done_when_the_node_says_so(bench: Bench) -> None:
    run = started(bench, WAITS, WAITS)
    fault = Fault(kind="rank-raise", rank=1)
    for request, phase, why in (("fault-1", "done", ""), ("fault-2", "failed", "there is no rank 1 here")):
        asked = threading.Thread(target=run.controller.submit, args=(request, fault))
        asked.start()
        until(lambda: (run.folder.path / "control" / "node-1" / f"{request}.json").exists())  # noqa: B023
        run.controller.observe([an_event("command", node="node-1", id=request, phase=phase, why=why)])
        until(lambda: run.events()[-1] != ("fault", request, "begun"))  # noqa: B023
        asked.join()

    assert run.events() == [
        *(("fault", "fault-1", phase) for phase in ("begun", "done")),
        ("fault", "fault-2", "begun"),
        ("refused", "fault-2", ""),
    ]
    run.controller.close()


def test_what_a_node_is_to_undo_waits_for_it_or_was_undone_when_it_left(bench: Bench) -> None:
    """The agents here ignore commands: only the test answers."""
    run = started(bench, WAITS, WAITS)
    for rank, request in enumerate(("fault-0", "fault-1")):
        order = run.folder.path / "control" / f"node-{rank}" / f"{request}.json"
        run.controller.submit(request, Fault(kind="rank-stop", rank=rank))
        until(order.exists)
        run.controller.observe([an_event("command", node=f"node-{rank}", id=request, phase="done")])
        until(lambda: ("fault", request, "done") in run.events())  # noqa: B023
    run.ask(Fault(kind="kill", nodes=("node-1",)), "fault-2")
    run.controller.observe([an_event("command", node="node-0", id="fault-0", phase="undone")])

    run.ask(Heal(target="fault-0"), "heal-0")
    run.ask(Heal(target="fault-1"), "heal-1")

    assert json.loads(order.read_text())["on"] is False
    assert run.events("heal", "refused") == [
        ("heal", name, phase) for name in ("fault-0", "fault-1") for phase in ("begun", "done")
    ]
    run.controller.close()


def test_what_cannot_be_healed_keeps_nothing_else_from_being(bench: Bench) -> None:
    run = started(bench, WAITS, WAITS)
    order = run.folder.path / "control" / "node-1" / "fault-1.json"
    run.controller.submit("fault-1", Fault(kind="rank-stop", rank=1))
    until(order.exists)
    run.controller.observe([an_event("command", node="node-1", id="fault-1", phase="done")])
    run.ask(Fault(kind="pause", nodes=("node-0",)), "fault-2")

    run.controller.submit("heal-1", Heal())
    until(lambda: '"on": false' in order.read_text())
    run.controller.observe([an_event("command", node="node-1", id="fault-1", phase="failed", why="it is gone")])

    until(lambda: ("refused", "heal-1", "") in run.events())
    assert run.events("heal") == [
        ("heal", "fault-1", "begun"),
        ("heal", "fault-2", "begun"),
        ("heal", "fault-2", "done"),
    ]
    run.controller.close()
