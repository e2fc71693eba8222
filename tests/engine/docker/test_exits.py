"""Exits of nodes are reported once each, whatever happens to the docker command that follows them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from compose_sim.core.faults.kind import Signal
from compose_sim.engine.docker.engine import DockerEngine
from tests.contract.bench import WAITS, Bench

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
