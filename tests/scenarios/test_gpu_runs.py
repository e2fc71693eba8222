"""Nodes get this machine's GPUs, share them and connect through NCCL. On a machine with a GPU: `scripts/gpu_test.sh` runs these.

Expected values follow from the machine's inventory, so machines with one GPU and with eight run the same tests.
"""

from __future__ import annotations

import json
import re

import pytest

from compose_sim.core.plan.gpus.gpu_plan import why_no_mps
from compose_sim.engine.host.docker_facts import docker_facts
from compose_sim.engine.host.gpus import inspect_gpus
from tests.builders import ROOT
from tests.scenarios.conftest import Project

UP = ("up", "--json", "--hang-timeout", "120s", "--timeout", "10m")
BENCH = str(ROOT / "templates" / "bench" / "gpu.py")
SMALL = ("--steps", "5", "--megabytes", "4")


def engines() -> list[str]:
    """The engines of this machine: containers if Docker responds."""
    return ["local", *(["docker"] if docker_facts().available else [])]


@pytest.mark.gpu
@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_nodes_see_the_gpus_of_the_plan_and_meet_by_nccl(project: Project, nodes: int) -> None:
    """Every node proves its UUIDs; if there are more nodes than GPUs, each rank is a client of MPS."""
    inventory = inspect_gpus()
    for engine in engines():
        outcome = project.run(*UP, "--engine", engine, "--nodes", str(nodes), BENCH, *SMALL)

        assert outcome.status == 0, outcome.stderr
        report = outcome.report
        assert (report["verdict"], report["backend"]) == ("passed", "nccl")
        seen = [rank["uuids"] for rank in report["metrics"]["ranks"]]
        assert seen == [[uuid.partition("-")[2] for uuid in node["gpus"]] for node in report["nodes"]]
        taken = {uuid for node in report["nodes"] for uuid in node["gpus"]}
        shared = nodes > len(taken) and not why_no_mps(inventory.gpus[0], inventory)
        assert {rank["mps"] for rank in report["metrics"]["ranks"]} <= ({True, None} if shared else {False, None})


@pytest.mark.gpu
def test_ranks_past_eight_on_one_gpu_still_train(project: Project) -> None:
    inventory = inspect_gpus()
    assert not why_no_mps(inventory.gpus[0], inventory)
    outcome = project.run(*UP, "--gpus", inventory.gpus[0].index, "--nodes", "12", BENCH, *SMALL)

    assert outcome.status == 0, outcome.stderr
    assert outcome.report["metrics"]["world_size"] == 12


@pytest.mark.gpu
def test_a_rank_that_takes_more_than_its_share_runs_out_of_memory_and_the_others_do_not(project: Project) -> None:
    script = project.write(
        "memory.py",
        "import os, torch\n"
        "size = (2 << 30) if os.environ['RANK'] == '0' else (64 << 20)\n"
        "print('free', torch.cuda.mem_get_info()[0] >> 20)\n"
        "torch.empty(size, dtype=torch.uint8, device='cuda')\n",
    )
    run = project.named("memory")
    outcome = project.run(*UP, "--nodes", "2", "--gpu-memory", "1536m", "--name", run, script)

    assert outcome.status == 1
    assert "OutOfMemoryError" in outcome.report["cause"]["message"]
    assert outcome.report["cause"]["rank"] == 0
    logs = project.written(run, "logs/*.log")
    free = [int(number) for log in logs for number in re.findall(r"^free (\d+)", log.read_text(), re.MULTILINE)]
    shared = len({uuid for node in outcome.report["nodes"] for uuid in node["gpus"]}) == 1
    if shared and not why_no_mps(inspect_gpus().gpus[0], inspect_gpus()):  # MPS limits the rank as a whole
        assert free
        assert max(free) <= 1536


@pytest.mark.gpu
def test_a_node_that_sees_another_gpu_than_planned_stops_the_run(project: Project) -> None:
    """As if a file of variables hid the GPU."""
    planned = inspect_gpus().gpus[0].uuid
    spec = project.folder / "composesim.yaml"
    spec.write_text("nodes: [{env: {CUDA_VISIBLE_DEVICES: ''}}]\n")
    outcome = project.run(*UP, "--engine", "local", "--gpus", planned, BENCH, *SMALL)

    assert outcome.status == 1
    assert f"node-0 sees no GPU, but {planned} was planned" in outcome.report["cause"]["message"]


@pytest.mark.gpu
def test_doctor_proves_it(project: Project) -> None:
    outcome = project.run("doctor", "--gpu", "--json")

    assert outcome.status == 0, (outcome.stdout, outcome.stderr)
    checks = {check["id"]: check for check in json.loads(outcome.stdout)["checks"]}
    assert [checks[name]["status"] for name in ("uuids", "transport", "speed")] == ["passed"] * 3
    assert "NET/Socket" in checks["transport"]["detail"]


@pytest.mark.train
def test_the_script_of_doctor_and_bench_runs_without_a_gpu(project: Project) -> None:
    """The numbers are the CPU's; the test only shows that the script works."""
    outcome = project.run(
        *UP,
        "--engine",
        "local",
        "--gpus",
        "none",
        "--nodes",
        "2",
        BENCH,
        "--steps",
        "2",
        "--megabytes",
        "1",
        "--width",
        "16",
        "--large-width",
        "32",
    )

    assert outcome.status == 0, outcome.stderr
    metrics = outcome.report["metrics"]
    assert [rank["node"] for rank in metrics["ranks"]] == ["node-0", "node-1"]
    assert (
        min(
            metrics[name] for name in ("step_ms", "large_step_ms", "latency_us", "all_reduce_ms", "bus_gigabytes_per_s")
        )
        > 0
    )
