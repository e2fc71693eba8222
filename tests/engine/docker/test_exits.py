"""Exits of nodes are reported once each, whatever happens to the docker command that follows them."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from compose_sim.core.faults.kind import Signal
from compose_sim.engine.docker import exits as exits_module
from compose_sim.engine.docker.engine import DockerEngine
from tests.contract.bench import WAITS, Bench
from tests.scenarios.conftest import eventually

pytestmark = pytest.mark.docker


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(DockerEngine(), tmp_path)
    yield bench
    for run in bench.runs:
        bench.engine.remove(run)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_exit_is_missed_if_the_docker_command_is_killed(bench: Bench, number: signal.Signals) -> None:
    plan = bench.start("raise SystemExit(3)", WAITS, WAITS)
    exits = bench.engine.exits(plan)
    found = [next(exits)]
    (command,) = (each for each in psutil.Process().children() if each.cmdline()[:2] == ["docker", "events"])

    command.suspend()
    bench.do(plan, Signal(node="node-1", name="KILL"))
    command.send_signal(number)
    command.resume()
    found.append(next(exits))
    bench.do(plan, Signal(node="node-2", name="KILL"), Signal(node="master", name="KILL"))
    found += exits

    assert sorted((status.node, status.exit_code) for status in found) == [
        *(("master", 137), ("node-0", 3), ("node-1", 137), ("node-2", 137)),
    ]


def test_an_exit_is_reported_once_if_the_daemon_lists_it_before_its_event(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy daemon knows of an exit before it writes the event, whose time is then later than the listing."""
    plan = bench.start(WAITS, WAITS)
    listed_at = time.time()
    bench.do(plan, Signal(node="node-0", name="KILL"))
    eventually(
        lambda: any(each.exit_code for each in bench.engine.statuses(plan.run)), within=60, what="an exit is listed"
    )
    monkeypatch.setattr(exits_module.time, "time", lambda: listed_at)

    exits = bench.engine.exits(plan)
    found = [next(exits)]
    monkeypatch.undo()
    bench.do(plan, Signal(node="node-1", name="KILL"), Signal(node="master", name="KILL"))
    found += exits

    assert sorted(status.node for status in found) == ["master", "node-0", "node-1"]
