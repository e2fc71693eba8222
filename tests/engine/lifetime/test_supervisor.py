"""A run is removed when its composesim is killed, and only then. Real processes on the local engine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from compose_sim.core.events.events import parse_event
from compose_sim.engine.lifetime.orphans import remove_crashed
from compose_sim.engine.lifetime.supervisor import start_supervisor
from compose_sim.engine.local.engine import LocalEngine
from compose_sim.engine.run_folder.folder import RunFolder, runs_folder
from compose_sim.node.shared.process import Owners
from tests.builders import ROOT
from tests.contract.bench import DEAF, WAITS, Bench, until

# A minimal composesim: it starts a run, and waits to be killed.
OWNER = """
import signal, sys
from pathlib import Path
from compose_sim.engine.local.engine import LocalEngine
from compose_sim.engine.run_folder.folder import runs_folder
from compose_sim.engine.lifetime.supervisor import start_supervisor
from tests.contract.bench import DEAF, WAITS, Bench
bench = Bench(LocalEngine(), Path(sys.argv[1]))
plan = bench.start(DEAF, WAITS)
supervisor = start_supervisor("local", plan.run, runs_folder(bench.project) / plan.run)
print(plan.run, supervisor.process.pid, flush=True)
signal.pause()
"""


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-c", OWNER, str(tmp_path)]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(LocalEngine(), tmp_path)
    yield bench
    for run in bench.runs:
        bench.engine.remove(run)


def started(owner: subprocess.Popen[str]) -> tuple[str, int]:
    """Return the run, and the process id of its supervisor."""
    assert owner.stdout is not None
    run, supervisor = owner.stdout.readline().split()
    return run, int(supervisor)


def notes(folder: Path) -> list[str]:
    path = folder / "journal" / "composesim.jsonl"
    events = map(parse_event, path.read_text().splitlines() if path.exists() else [])
    return [str(event.data["message"]) for event in events if event and event.kind == "note"]


def test_a_run_is_removed_when_composesim_is_killed(owner: subprocess.Popen[str], tmp_path: Path) -> None:
    run, _ = started(owner)
    folder = runs_folder(tmp_path) / run

    owner.kill()
    until(lambda: bool(notes(folder)))

    assert run not in LocalEngine().remaining_runs()
    assert notes(folder) == ["composesim ended without cleaning up; the supervisor removed the run"]
    assert "nothing is left" in (folder / "supervisor.log").read_text()


def test_the_next_run_removes_what_is_left_if_the_supervisor_was_killed_too(
    owner: subprocess.Popen[str], tmp_path: Path
) -> None:
    run, supervisor = started(owner)
    assert remove_crashed(tmp_path) == []
    os.kill(supervisor, signal.SIGKILL)
    owner.kill()
    owner.wait()

    assert remove_crashed(tmp_path / "another") == []
    assert [found.run for found in remove_crashed(tmp_path)] == [run]
    assert run not in LocalEngine().remaining_runs()


def test_what_ends_a_terminal_does_not_end_the_supervisor(owner: subprocess.Popen[str], tmp_path: Path) -> None:
    run, supervisor = started(owner)
    until(lambda: catches(supervisor, signal.SIGHUP))

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(supervisor, number)
    owner.kill()

    until(lambda: bool(notes(runs_folder(tmp_path) / run)))
    assert run not in LocalEngine().remaining_runs()


def test_a_released_run_is_left_alone(bench: Bench) -> None:
    plan = bench.start(WAITS)

    supervisor = start_supervisor("local", plan.run, runs_folder(bench.project) / plan.run)
    supervisor.release()
    supervisor.hand_over()

    assert bench.running(plan) == ["master", "node-0"]


def test_a_run_that_was_removed_before_an_error_is_not_looked_after(bench: Bench) -> None:
    plan = bench.start(WAITS)
    folder = runs_folder(bench.project) / plan.run

    supervisor = start_supervisor("local", plan.run, folder)
    bench.engine.remove(plan.run)
    supervisor.release()
    supervisor.hand_over()

    assert (folder / "supervisor.log").read_text() == ""


def test_a_run_that_another_composesim_has_taken_over_is_left_alone(bench: Bench) -> None:
    """The test holds the run's folder, as a new run of the same name would."""
    plan = bench.start(DEAF)
    folder = runs_folder(bench.project) / plan.run
    argv = [sys.executable, "-m", "compose_sim.engine.lifetime.supervisor", "local", plan.run, str(folder)]

    subprocess.run(argv, cwd=ROOT, stdin=subprocess.DEVNULL, check=True, capture_output=True)

    assert RunFolder(folder).is_claimed()
    assert bench.running(plan) == ["master", "node-0"]


def catches(pid: int, number: signal.Signals) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    mask = next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt"))
    return bool(mask >> (number - 1) & 1)


def test_nodes_end_by_themselves_if_composesim_and_the_supervisor_were_killed(
    owner: subprocess.Popen[str], tmp_path: Path
) -> None:
    run, supervisor = started(owner)
    owners = Owners(runs_folder(tmp_path) / run)
    assert not owners.are_gone()

    os.kill(supervisor, signal.SIGKILL)
    owner.kill()
    owner.wait()

    until(owners.are_gone)
    LocalEngine().remove(run)
