"""Acts on containers: limits of the kernel's control groups."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from compose_sim.core.faults.kind import LimitCpus, Signal, Start
from compose_sim.core.plan.model import Plan
from compose_sim.engine.control.node_actions import NodeActions
from compose_sim.engine.docker.engine import DockerEngine
from compose_sim.engine.run_folder.folder import RunFolder, runs_folder
from tests.contract.bench import WAITS, Bench, until

pytestmark = pytest.mark.docker
# Quota and period, as reported by control groups of either version.
LIMIT = """
from pathlib import Path
group = Path("/sys/fs/cgroup")
if (group / "cpu.max").exists():
    print((group / "cpu.max").read_text())
else:
    print(*((group / "cpu" / f"cpu.cfs_{what}_us").read_text() for what in ("quota", "period")))
"""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(DockerEngine(), tmp_path)
    yield bench
    for run in bench.runs:
        bench.engine.remove(run)


def cpus_of(bench: Bench, plan: Plan, node: str) -> float:
    container = next(status.handle for status in bench.engine.statuses(plan.run) if status.node == node)
    argv = ["docker", "exec", container, plan.python, "-c", LIMIT]
    quota, period = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
    return int(quota) / int(period)


def test_a_straggler_gets_little_cpu_until_it_is_healed(bench: Bench) -> None:
    """Docker cannot remove a limit, so without one a node may use all CPUs. A dead node can be healed too."""
    plan = bench.start(WAITS)
    all_there_is = float(subprocess.check_output(["docker", "info", "--format", "{{.NCPU}}"], text=True))

    bench.do(plan, LimitCpus(node="node-0", cpus=0.2))
    limited = cpus_of(bench, plan, "node-0")
    bench.do(plan, LimitCpus(node="node-0", cpus=None))

    assert (limited, cpus_of(bench, plan, "node-0")) == (0.2, all_there_is)

    actions = NodeActions(plan, bench.engine, RunFolder(runs_folder(bench.project) / plan.run))
    actions.refresh()
    actions.execute(LimitCpus(node="node-0", cpus=0.2), "fault-1")
    actions.execute(Signal(node="node-0", name="KILL"), "fault-2")
    until(lambda: bench.running(plan) == ["master"])
    actions.refresh()
    actions.execute(LimitCpus(node="node-0", cpus=None), "fault-1")
    actions.execute(Start(node="node-0"), "fault-2")
    assert cpus_of(bench, plan, "node-0") == all_there_is
