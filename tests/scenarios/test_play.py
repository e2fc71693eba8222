"""`play` applies a scenario to a real run, and its exit code follows the expectations."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from tests.scenarios.conftest import Project

pytestmark = pytest.mark.train

# Continues until it has been in three rounds: one with all nodes, one without the killed one, one with all of them again.
SCRIPT = """
import json, os, time, torch, torch.distributed as dist

dist.init_process_group("gloo")
weight = torch.zeros(1, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
step, first_rounds = 0, int(os.environ["TORCHELASTIC_RESTART_COUNT"]) < 2
while step < 20 or first_rounds:
    weight.grad = torch.ones(1)
    dist.all_reduce(weight.grad)
    optimizer.step()
    step += 1
    if dist.get_rank() == 0:
        print(json.dumps({"step": step, "loss": 1.0}), flush=True)
    time.sleep(0.05)
dist.destroy_process_group()
"""
SCENARIO = """
cluster: {nodes: 2, elastic: "1:2"}
steps:
- at: {rank: 0, step: 10}
  pick: any
  fault: {kind: kill}
- at: {event: recovered}
  heal: all
expect:
- recovered_within: 10m
- world_sizes: [2, 1, 2]
- loss_continuous: 1%
- faults_at_least: 1
- exit_code: 0
- nothing_left: true
"""


def test_a_scenario_is_played_and_what_it_expects_is_judged(project: Project, engine: str) -> None:
    scenario, script = project.write("loss.yaml", SCENARIO), project.write("train.py", SCRIPT)
    outcome = project.run("play", scenario, "--engine", engine, "--seed", "5", "--json", script, timeout=300)

    assert outcome.status == 0, outcome.stdout + outcome.stderr
    assert {each["id"]: each["status"] for each in outcome.report["expectations"]} == dict.fromkeys(
        ("recovered_within", "world_sizes", "loss_continuous", "faults_at_least", "exit_code", "nothing_left"), "passed"
    )
    assert outcome.report["scenario"]["seed"] == 5
    assert [step["times"] for step in outcome.report["scenario"]["steps"]] == [1, 1]


def test_an_expectation_that_failed_is_the_end_of_the_scenario(project: Project) -> None:
    scenario = project.write("hope.yaml", "cluster: {nodes: 1, engine: local}\nexpect:\n- world_sizes: [3]\n")
    outcome = project.run(
        "play", scenario, "--junit", "out.xml", project.write("train.py", SCRIPT.replace("< 2", "< 0")), timeout=300
    )

    assert outcome.status == 1
    assert "✘ world_sizes 3  1" in outcome.stderr.splitlines()
    assert outcome.stderr.splitlines()[-1] == "✘ failed  world_sizes 3: 1"
    cases = {case.get("name"): case for case in ElementTree.parse(project.folder / "out.xml").iter("testcase")}
    assert [child.tag for child in cases["world_sizes 3"]] == ["failure"]
    assert [child.tag for child in cases["run passed"]] == ["system-out"]
    assert [child.tag for child in cases["rank 0 on node-0"]] == []
