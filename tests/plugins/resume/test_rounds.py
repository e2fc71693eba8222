"""`play` judges whether training goes on from the same state after a fault."""

from __future__ import annotations

import json

import pytest

from tests.plugins.resume.pairs import SCRIPTS
from tests.scenarios.conftest import Project

pytestmark = pytest.mark.train

SCENARIO = """
cluster: {nodes: 2, max_restarts: 2}
steps:
- at: {rank: 0, step: 11}
  fault: {kind: preempt, node: node-1, grace: 1s}
expect:
- state_continuous: true
"""
STEP = "            optimizer.zero_grad()\n"
SLOW = f"{STEP}            time.sleep(0.2)\n"
LOAD = '        optimizer.load_state_dict(state["optimizer"])\n'


@pytest.mark.parametrize(("lost", "status"), [("", "passed"), (LOAD, "failed")], ids=["all is loaded", "no optimizer"])
def test_a_round_repeats_the_steps_of_the_round_before(project: Project, lost: str, status: str) -> None:
    text = (SCRIPTS / "ddp.py").read_text()
    assert STEP in text
    assert lost in text
    text = text.replace(STEP, SLOW).replace("import random\n", "import random\nimport time\n").replace(lost, "")
    scenario, script = project.write("preempted.yaml", SCENARIO), project.write("train.py", text)

    outcome = project.run("play", scenario, "--engine", "local", "--json", script, timeout=300)

    report = json.loads(outcome.stdout)
    found = {each["id"]: each for each in report["expectations"]}
    assert found["state_continuous"]["status"] == status, found
    assert report["verdict"] == status
    assert ("optimizer" in found["state_continuous"]["detail"]) == bool(lost)
