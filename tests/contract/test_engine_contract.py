"""What composesim relies on in every engine. The nodes here are small Python programs, so no torch is needed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from compose_sim.core.faults.kind import Action, Pause, Signal, Start
from compose_sim.engine.registry import make_engine
from compose_sim.engine.run_folder.folder import runs_folder
from compose_sim.plugins.registry import ENGINES, built_in
from tests.contract.bench import COUNTS, DEAF, WAITS, Bench, until


@pytest.fixture(
    params=["local", *(pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("docker", *built_in(ENGINES)))]
)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    if request.param in built_in(ENGINES):
        request.getfixturevalue(f"{request.param}_cluster")
    bench = Bench(make_engine(request.param), tmp_path)
    yield bench
    for run in bench.runs:
        bench.engine.remove(run)


def test_nodes_are_found_by_their_labels(bench: Bench) -> None:
    """A second engine object acts as another shell."""
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
    next(iter(bench.engine.exits(plan)))

    ended = next(status for status in bench.engine.statuses(plan.run) if status.node == "node-0")

    assert (ended.running, ended.exit_code) == (False, 3)
    assert "node-1" in bench.running(plan)


def test_stop_ends_even_nodes_that_do_not_listen(bench: Bench) -> None:
    plan = bench.start(DEAF, WAITS)
    until(lambda: "deaf" in bench.engine.output(plan.run, "node-0"))

    bench.engine.stop(plan.run, grace_s=1)

    assert bench.running(plan) == []
    assert {status.node: status.exit_code for status in bench.engine.exits(plan)} == {
        "master": 143,
        "node-0": 137,
        "node-1": 143,
    }


def test_remove_leaves_nothing_but_the_folder(bench: Bench) -> None:
    plan = bench.start(DEAF, "pass")
    assert plan.run in bench.engine.remaining_runs()

    bench.engine.remove(plan.run)

    assert plan.run not in bench.engine.remaining_runs()
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


def test_lines_of_a_command_that_does_not_exist_name_the_node(bench: Bench) -> None:
    plan, lines = bench.start(WAITS), list[str]()

    assert bench.engine.execute(plan.run, "node-0", ["no-such-command"], lines.append) == 127
    assert bench.engine.execute(plan.run, "node-0", ["sh", "-c", "echo out; echo err >&2"], lines.append) == 0
    assert lines[0].startswith("node-0:")
    assert "no-such-command: not found" in lines[0]
    assert sorted(lines[1:]) == ["err", "out"]


def test_the_last_lines_of_a_node_that_failed_at_once(bench: Bench) -> None:
    plan = bench.start("import sys; [print(f'line {i}', flush=True) for i in range(30)]; sys.exit(1)")
    bench.ended(plan)

    assert bench.engine.output(plan.run, "node-0", lines=2).splitlines() == ["line 28", "line 29"]


def test_a_program_that_does_not_exist_ends_its_node(bench: Bench) -> None:
    plan = bench.start(command=("/no/such/program",))

    assert bench.ended(plan)["node-0"].exit_code in (127, 1)  # 1 is what the init of Podman exits with
    output = bench.engine.output(plan.run, "node-0")
    assert "/no/such/program" in output or "failed to exec pid1: No such file" in output


def test_a_node_that_is_started_again_is_watched_again(bench: Bench) -> None:
    plan = bench.start(WAITS, WAITS)
    deaths = bench.engine.exits(plan)

    for _ in range(2):
        bench.do(plan, Signal(node="node-1", name="KILL"))
        died = next(deaths)
        assert (died.node, died.exit_code, died.running) == ("node-1", 137, False)
        assert bench.running(plan) == ["master", "node-0"]
        bench.do(plan, Start(node="node-1"), Start(node="node-1"))  # the second time it runs: nothing happens
        until(lambda: bench.running(plan) == ["master", "node-0", "node-1"])
    bench.do(plan, Signal(node="node-0", name="TERM"))
    died = next(deaths)

    assert (died.node, died.exit_code) == ("node-0", 143)


@pytest.mark.parametrize(
    ("hold", "let_go"),
    [
        (Signal(node="node-0", name="STOP"), Signal(node="node-0", name="CONT")),
        (Pause(node="node-0"), Pause(node="node-0", on=False)),
    ],
    ids=["stopped", "paused"],
)
def test_a_node_that_is_held_stands_still_until_it_is_let_go(bench: Bench, hold: Action, let_go: Action) -> None:
    """The other one keeps counting. Repeating an action changes nothing; frozen nodes are removed when a run ends."""
    plan = bench.start(COUNTS, COUNTS)
    until(lambda: bench.counted(plan, "node-0") > 0)

    bench.do(plan, hold, hold)
    held, other = bench.counted(plan, "node-0"), bench.counted(plan, "node-1")
    until(lambda: bench.counted(plan, "node-1") > other + 100)
    assert bench.counted(plan, "node-0") == held

    bench.do(plan, let_go, let_go)
    until(lambda: bench.counted(plan, "node-0") > held)
    bench.do(plan, hold)
    bench.engine.remove(plan.run)
    assert plan.run not in bench.engine.remaining_runs()


def test_a_node_that_joins_later_is_started_when_it_is_wanted(bench: Bench) -> None:
    plan = bench.start(WAITS, WAITS, initial_node_count=1)
    assert bench.running(plan) == ["master", "node-0"]
    deaths = bench.engine.exits(plan)

    bench.do(plan, Start(node="node-1"))
    until(lambda: bench.running(plan) == ["master", "node-0", "node-1"])
    addresses = bench.engine.addresses(plan)
    bench.do(plan, Signal(node="node-1", name="KILL"))

    assert next(deaths).node == "node-1"
    assert addresses.keys() == ({"master", "node-0", "node-1"} if bench.engine.name == "docker" else set())
