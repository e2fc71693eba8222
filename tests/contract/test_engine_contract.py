"""What does composesim rely on in every engine? The nodes here are small Python programs, so no torch is needed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import uuid4

import pytest

from compose_sim.core.inventory import Host
from compose_sim.core.plan import Plan, Program, make_plan
from compose_sim.core.spec import ClusterSpec
from compose_sim.engine.engines import make_engine
from compose_sim.engine.inspect import inspect_host
from compose_sim.engine.protocol import Engine, NodeStatus
from compose_sim.engine.rundir import RunFolder, runs_folder
from compose_sim.render import write_documents

MASTER = """
import json, os, signal
event = {"t": 0, "kind": "master-started", "data": {"port": 1}}
with open(os.environ["COMPOSESIM_DIR"] + "/events/master.jsonl", "a") as file:
    file.write(json.dumps(event) + "\\n")
signal.pause()
"""
WAITS = "import signal; signal.pause()"
DEAF = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("deaf", flush=True)
while True:
    signal.pause()
"""


@dataclass
class Bench:
    """One engine, and the runs that a test has started on it."""

    engine: Engine
    project: Path
    runs: list[str] = field(default_factory=list)

    def start(self, *programs: str, command: tuple[str, ...] | None = None) -> Plan:
        """Start a run with one node for each Python program, or with one node for a command."""
        run = f"contract-{uuid4().hex[:8]}"
        folder = RunFolder(runs_folder(self.project) / run)
        host = self._host()
        plan = self._plan(host, run, folder, len(programs) or 1)
        python = plan.python
        commands = [command] if command else [(python, "-c", program) for program in programs]
        nodes = tuple(replace(node, command=own) for node, own in zip(plan.nodes, commands, strict=True))
        plan = replace(plan, master=replace(plan.master, command=(python, "-c", MASTER)), nodes=nodes)
        self.runs.append(run)
        folder.claim()
        folder.clear(host.user_id, host.group_id)
        folder.write_plan(plan)
        image = self.engine.prepare(plan, lambda text: None)
        write_documents(plan, folder.path, image=image)
        self.engine.start(plan, folder)
        return plan

    def ended(self, plan: Plan) -> dict[str, NodeStatus]:
        """The nodes of a run, once all of them have ended; the master goes on until it is stopped."""
        names = {node.name for node in plan.nodes}
        statuses: dict[str, NodeStatus] = {}
        for status in self.engine.stopped(plan):
            statuses[status.node] = status
            if names <= statuses.keys():
                break
        return statuses

    def running(self, plan: Plan) -> list[str]:
        return [status.node for status in self.engine.statuses(plan.run) if status.running]

    def _host(self) -> Host:
        """This machine now: each run takes a subnet."""
        host = inspect_host(self.project, python=sys.executable, with_docker=self.engine.name == "docker")
        assert host.python is not None
        return replace(host, python=replace(host.python, has_torch=True))  # which no program here asks for

    def _plan(self, host: Host, run: str, folder: RunFolder, nodes: int) -> Plan:
        spec = ClusterSpec(engine=self.engine.name, image="auto", nodes=nodes)  # type: ignore[arg-type]
        program = Program(target="none.py", folder=str(self.project))
        return make_plan(spec, host, run=run, run_folder=str(folder.path), program=program)


@pytest.fixture(params=["local", pytest.param("docker", marks=pytest.mark.docker)])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(make_engine(request.param), tmp_path)
    yield bench
    for run in bench.runs:
        bench.engine.remove(run)


def until(condition: Callable[[], bool]) -> None:
    """Return as soon as the condition holds; fail after a minute."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


def test_nodes_are_found_by_their_labels(bench: Bench) -> None:
    """A second engine object stands for another shell."""
    plan = bench.start(WAITS, WAITS)

    statuses = make_engine(bench.engine.name).statuses(plan.run)

    assert [(status.node, status.role, status.ranks) for status in statuses] == [
        ("master", "master", ""),
        ("node-0", "node", "0"),
        ("node-1", "node", "1"),
    ]
    assert all(status.running and status.exit_code is None and status.handle and status.since for status in statuses)
    assert {status.folder for status in statuses} == {str(runs_folder(bench.project) / plan.run)}


def test_each_node_that_ends_is_told_with_its_exit_code(bench: Bench) -> None:
    plan = bench.start("pass", "raise SystemExit(3)", "import os; os.kill(os.getpid(), 9)")

    ended = bench.ended(plan)

    assert {name: status.exit_code for name, status in ended.items()} == {"node-0": 0, "node-1": 3, "node-2": 137}
    assert not any(status.running for status in ended.values())


def test_an_ended_node_keeps_its_exit_code_while_others_run(bench: Bench) -> None:
    plan = bench.start("raise SystemExit(3)", WAITS)
    next(iter(bench.engine.stopped(plan)))

    ended = next(status for status in bench.engine.statuses(plan.run) if status.node == "node-0")

    assert (ended.running, ended.exit_code) == (False, 3)
    assert "node-1" in bench.running(plan)


def test_stop_ends_even_nodes_that_do_not_listen(bench: Bench) -> None:
    plan = bench.start(DEAF, WAITS)
    until(lambda: "deaf" in bench.engine.output(plan.run, "node-0"))

    bench.engine.stop(plan.run, grace_s=1)

    assert bench.running(plan) == []
    assert {status.node: status.exit_code for status in bench.engine.stopped(plan)} == {
        "master": 143,
        "node-0": 137,
        "node-1": 143,
    }


def test_remove_leaves_nothing_but_the_folder(bench: Bench) -> None:
    plan = bench.start(DEAF, "pass")
    assert plan.run in bench.engine.runs_left()

    bench.engine.remove(plan.run)

    assert plan.run not in bench.engine.runs_left()
    assert bench.engine.statuses(plan.run) == ()
    assert (runs_folder(bench.project) / plan.run / "plan.json").exists()


def test_removing_nothing_is_no_error(bench: Bench) -> None:
    plan = bench.start("pass")

    bench.engine.remove(plan.run)
    bench.engine.remove(plan.run)
    bench.engine.stop(plan.run, grace_s=1)


def test_two_runs_do_not_see_each_other(bench: Bench) -> None:
    first, second = bench.start(WAITS), bench.start(WAITS)

    bench.engine.remove(first.run)

    assert bench.running(second) == ["master", "node-0"]
    assert bench.engine.statuses(first.run) == ()


def test_a_command_runs_in_the_environment_of_its_node(bench: Bench) -> None:
    plan = bench.start(WAITS, WAITS)
    place = f"('node-1', {plan.run!r}, {plan.working_directory!r})"
    names = "os.environ['COMPOSESIM_NODE'], os.environ['COMPOSESIM_RUN'], os.getcwd()"
    program = f"import os, sys; sys.exit(7 if ({names}) == {place} else 1)"

    assert bench.engine.execute(plan.run, "node-1", [plan.python, "-c", program]) == 7


def test_the_last_lines_of_a_node_that_failed_at_once(bench: Bench) -> None:
    plan = bench.start("import sys; [print(f'line {i}', flush=True) for i in range(30)]; sys.exit(1)")
    bench.ended(plan)

    assert bench.engine.output(plan.run, "node-0", lines=2).splitlines() == ["line 28", "line 29"]


def test_a_program_that_does_not_exist_ends_its_node(bench: Bench) -> None:
    plan = bench.start(command=("/no/such/program",))

    assert bench.ended(plan)["node-0"].exit_code == 127
    assert "/no/such/program" in bench.engine.output(plan.run, "node-0")
