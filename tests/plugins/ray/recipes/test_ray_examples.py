"""Ray's examples run to the end: on two nodes, with a node killed, with a node added, and with Ray alone."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.builders import ROOT
from tests.scenarios.conftest import Project

pytestmark = pytest.mark.recipes

EXAMPLES = ROOT / "compose_sim" / "plugins" / "ray" / "templates" / "examples"
# Small: the tests check that everything runs, not what is learned. Each uses the cluster as it finds it.
SMALL = {
    "ray_faults.py": "--tasks 6 --seconds 0",
    "ray_data.py": "--images 4000 --blocks 4 --readers 1",
    "ray_train_digits.py": "--workers 2 --epochs 2",
    "ray_rllib.py": "--samplers 2 --batch 500 --goal 22 --iterations 20",
    "ray_environment.py": "--samplers 1 --batch 200 --iterations 2 --together 1 --lr 1e-3 3e-3",
}
# All in one cluster, which takes longer to start than most of them run.
ALL = f"""
import runpy, sys, ray

for name, words in {SMALL!r}.items():
    sys.argv = [name, *words.split()]
    runpy.run_path("{EXAMPLES}/" + name, run_name="__main__")
    ray.shutdown()
    print("came to its end:", name, flush=True)
"""
# Ray Train keeps a checkpoint once its controller has seen the reports of all workers, which it asks for every two seconds:
# right after step 2 there may be none, by step 4 there is that of step 2.
LOSS = """
cluster: {nodes: 2}
steps:
- at: {step: 4}
  fault: {kind: kill, node: node-1, for: 1s}
"""
GROWTH = """
cluster: {nodes: 1, elastic: "1:2"}
steps:
- at: {step: 3}
  scale: 2
"""
# Continues until the added node has done some of the work.
SPREADING = """
import json, ray

@ray.remote(num_cpus=1, scheduling_strategy="SPREAD")
def where():
    return ray.get_runtime_context().get_node_id()

ray.init()
step, nodes = 0, set()
while len(nodes) < 2:
    nodes.update(ray.get([where.remote() for _ in range(4)]))
    step += 1
    print(json.dumps({"step": step, "nodes": len(nodes)}), flush=True)
"""


def words(python: Path, run: str) -> tuple[str, ...]:
    return ("--json", "--recipe", "ray", "--engine", "docker", "--python", str(python), "--name", run)


def printed(project: Project, run: str) -> list[str]:
    """Return what the driver printed."""
    return project.log_of(run, "driver.0").splitlines()


def metrics(lines: list[str]) -> list[dict[str, float]]:
    """Return the JSON lines."""
    return [json.loads(line) for line in lines if line.startswith("{")]


@pytest.mark.docker
def test_every_example_comes_to_its_end_on_two_nodes(project: Project, recipes_python: Path) -> None:
    run = project.named("examples")
    done = project.run(
        "up",
        *words(recipes_python, run),
        "--nodes",
        "2",
        "--option",
        "cpus=2",
        project.write("all.py", ALL),
        timeout=600,
    )

    lines = printed(project, run)
    assert done.status == 0, "\n".join(lines[-30:]) + done.stderr[-3000:]
    assert [line.rpartition(" ")[2] for line in lines if line.startswith("came to its end")] == list(SMALL)
    told = metrics(lines)
    assert {"step": 6, "sum": 55, "nodes": 2} in told, "tasks ran on both nodes, the killed one again"
    assert {"step": 1, "before": 5, "after": 6} in told, "the actor went on where it was"
    assert [each["images"] for each in told if "images" in each][-1] == 4000
    assert [each["workers"] for each in told if "workers" in each] == [2, 2]
    assert max(each["return"] for each in told if "samples" in each) >= 22
    assert {each["lr"] for each in told if "lr" in each} == {1e-3, 3e-3}
    shared = project.folder / ".composesim" / "runs" / run / "shared"
    assert [*shared.glob("cartpole/PPO*/checkpoint_*")], "at the end of the trial there is a checkpoint"
    assert [*shared.glob("digits/checkpoint_*")]


@pytest.mark.docker
def test_a_training_whose_node_is_killed_comes_to_its_end_by_a_retry(project: Project, recipes_python: Path) -> None:
    run, scenario = project.named("killed"), project.write("loss.yaml", LOSS)
    script = ("ray_train_digits.py", "--workers", "2", "--epochs", "8")
    done = project.run("play", scenario, *words(recipes_python, run), *script, timeout=600)

    lines = printed(project, run)
    assert done.status == 0, "\n".join(lines[-30:]) + done.stderr[-3000:]
    assert [fault["kind"] for fault in done.report["faults"]] == ["kill"]
    steps = [each["step"] for each in metrics(lines)]
    assert (steps[0], steps[-1], steps.count(1)) == (1, 8, 1), f"it went on from a checkpoint: {steps}"


@pytest.mark.docker
def test_a_running_script_makes_use_of_a_node_that_is_added(project: Project, recipes_python: Path) -> None:
    run, scenario = project.named("grown"), project.write("growth.yaml", GROWTH)
    done = project.run(
        "play", scenario, *words(recipes_python, run), project.write("spread.py", SPREADING), timeout=600
    )

    lines = printed(project, run)
    assert done.status == 0, "\n".join(lines[-30:]) + done.stderr[-3000:]
    nodes = [each["nodes"] for each in metrics(lines)]
    assert (nodes[0], nodes[-1]) == (1, 2)


def test_an_example_runs_by_ray_alone(recipes_python: Path, tmp_path: Path) -> None:
    """The same script, under a plain ray.init()."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "COMPOSESIM_"))}
    done = subprocess.run(
        [recipes_python, EXAMPLES / "ray_faults.py", "--tasks", "5", "--seconds", "0", "--storage", tmp_path],
        env={**environment, "HOME": str(tmp_path)},  # where Ray writes its token
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )

    assert done.returncode == 0, done.stderr[-3000:]
    assert metrics(done.stdout.splitlines())[-2:] == [
        {"step": 5, "sum": 30, "nodes": 1},
        {"step": 1, "before": 5, "after": 6},
    ]
