"""Ray clusters of the real command: which nodes join, the effect of a loss, who is refused, and what is left behind."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path

import pytest
import yaml

from compose_sim.core.plan.model import short_folder
from compose_sim.node.master.server import free_port
from tests.builders import PATIENCE_S, ROOT
from tests.scenarios.conftest import Project, eventually, wait_for_line

pytestmark = pytest.mark.recipes

# Waits until a lost node is back, then for work that was assigned before, and tries to join with another token.
CLUSTER = """
import json, os, subprocess, sys, time
import ray

ray.init(logging_level="ERROR")

def nodes():
    return {node["NodeName"]: node for node in ray.nodes() if node["Alive"]}

@ray.remote(num_cpus=1, max_retries=4)
def work(number):
    time.sleep(2.0)
    return ray.get_runtime_context().get_node_id()

first = nodes()
sizes = {name: node["Resources"].get("CPU", 0) for name, node in first.items()}
pending = [work.remote(number) for number in range(9)]
print("at work", flush=True)
while (again := nodes().get("node-1")) is None or again["NodeID"] == first["node-1"]["NodeID"]:
    time.sleep(0.2)
ray.get(pending)
stranger = {**os.environ, "RAY_AUTH_TOKEN": "0" * 64}
stranger.pop("RAY_AUTH_TOKEN_PATH")
refused = subprocess.run([sys.executable, "-c", "import ray; ray.init()"], env=stranger, capture_output=True, text=True)
print(json.dumps({"sizes": sizes, "refused": "AuthenticationError" in refused.stderr, "done": len(pending)}), flush=True)
"""
HELLO = """
import ray

ray.init(logging_level="ERROR")
print("sum", sum(ray.get([ray.remote(lambda n: n * n).remote(n) for n in range(4)])), flush=True)
"""
FOREVER = HELLO + "import time\nprint('begun', flush=True)\nwhile True:\n    time.sleep(60)\n"


def up(python: Path, engine: str, run: str, *more: str) -> tuple[str, ...]:
    """Run the command with the Python that has Ray."""
    return ("up", "--recipe", "ray", "--engine", engine, "--python", str(python), "--name", run, *more)


def printed(project: Project, run: str, log: str = "driver.0") -> str:
    """Return what the driver, or another writer, printed."""
    return project.log_of(run, log)


@pytest.mark.docker
def test_a_cluster_of_unequal_nodes_goes_on_after_a_loss(project: Project, recipes_python: Path) -> None:
    """Ray reassigns lost work; a node that comes back rejoins Ray; nobody can join with another token."""
    run = project.named("ray")
    nodes = [{"cpus": 1, "memory": "3g"}, {"cpus": 2}]
    project.write("composesim.yaml", yaml.safe_dump({"nodes": nodes, "options": {"dashboard": "off"}}))
    cluster = project.start(*up(recipes_python, "docker", run), project.write("train.py", CLUSTER))
    wait_for_line(cluster, "at work")

    def counts_the_nodes() -> bool:
        """Whether Ray, which updates the status every few seconds, counts the CPUs of the nodes, and none of the head."""
        return "3.0 CPU" in project.run("exec", "--run", run, "node-0", "--", "ray", "status").stdout

    eventually(counts_the_nodes, within=PATIENCE_S, what="ray status counts 3 CPUs")
    lost = project.run("fault", "restart", "node-1", "--run", run)
    said, complained = cluster.communicate(timeout=4 * PATIENCE_S)

    report = project.report_of(run)
    assert (report["verdict"], cluster.returncode) == ("passed", 0), said + complained
    assert lost.status == 0, lost
    found = json.loads(printed(project, run).splitlines()[-1])
    assert found == {"sizes": {"head": 0, "node-0": 1, "node-1": 2}, "refused": True, "done": 9}
    facts = report["driver"]["facts"]
    assert (facts["words"], facts["nodes"], facts["cpus"]) == ("2 nodes, 3 CPUs", 2, 3)
    assert [fault["kind"] for fault in report["faults"]] == ["restart"]
    token = (project.folder / ".composesim" / "runs" / run / "secrets" / "token").read_text()
    assert token not in json.dumps(report)


def test_bare_processes_leave_nothing(project: Project, recipes_python: Path) -> None:
    """After kill -9, too: no process, no folder in /tmp; and meanwhile no other user can open Ray's sockets."""
    run = project.named("bare")
    folder = Path(short_folder(run))
    # On ports that no other test, and no plain Ray, chooses at the same moment.
    published = ("--publish", f"dashboard={free_port('')}", "--publish", f"client={free_port('')}")
    cluster = project.start(
        *up(recipes_python, "local", run, "--nodes", "2", *published), project.write("train.py", FOREVER)
    )
    wait_for_line(cluster, "begun")

    mode = folder.stat().st_mode & 0o777
    cluster.kill()
    cluster.communicate(timeout=PATIENCE_S)
    eventually(lambda: not folder.exists(), within=2 * PATIENCE_S, what="the supervisor has removed the run")

    assert mode == 0o700
    assert "sum 14" in printed(project, run)


def test_a_node_that_never_registers_is_named(project: Project, recipes_python: Path) -> None:
    """This node has another token: Ray's head refuses it."""
    run = project.named("stranger")
    nodes = [{}, {"env": {"RAY_AUTH_TOKEN": "0" * 64}}]
    project.write("composesim.yaml", yaml.safe_dump({"nodes": nodes, "options": {"dashboard": "off"}}))

    done = project.run(
        *up(recipes_python, "local", run, "--json"), project.write("train.py", HELLO), timeout=4 * PATIENCE_S
    )

    report = done.report
    assert (report["verdict"], done.status) == ("failed", 1)
    assert "node-1" in json.dumps(report["cause"]), report["cause"]
    assert "sum" not in printed(project, run)
    assert "Authentication" in printed(project, run, "node-1.1")


@pytest.mark.docker
def test_an_image_without_ray_is_named(project: Project) -> None:
    """The error comes at once, with the command that builds an image with Ray."""
    words = ("up", "--json", "--recipe", "ray", "--engine", "docker", "--image", "composesim-test-base:1")

    done = project.run(*words, "--name", project.named("none"), project.write("train.py", HELLO))

    cause = done.report["cause"]
    assert (done.status, done.report["driver"]["exit_code"]) == (1, 90)
    assert "ray is not installed" in cause["message"]
    assert "composesim image build --recipe ray" in json.dumps(done.report)


def test_a_port_that_is_taken_is_named(project: Project, recipes_python: Path) -> None:
    """The port of Ray's head on this machine's address."""
    with socket.create_server(("", 0)) as taken:
        port = str(taken.getsockname()[1])
        words = up(recipes_python, "local", project.named("taken"), "--json", "--master-port", port)
        done = project.run(*words, "--option", "dashboard=off", project.write("train.py", HELLO))

    assert done.status == 4
    assert f"port {port} of the master" in json.loads(done.stdout)["error"]["message"]


def test_a_published_port_that_was_taken_after_planning_is_named(recipes_python: Path, tmp_path: Path) -> None:
    """The driver finds it before Ray does, whose error suggests options that composesim does not have."""
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        code = f"from compose_sim.plugins.ray.node import driver; driver._require_free({{'client': {port}}})"
        done = subprocess.run([recipes_python, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode != 0
    assert str(port) in done.stderr
    assert f"--publish client={port + 1}" in done.stderr


def test_ray_starts_without_the_grammar_that_jupyter_brings(recipes_python: Path) -> None:
    """Every process of Ray imports jsonschema, which imports this if it is installed: most of the CPU time of the start."""
    code = "import sys, ray; print('rfc3987_syntax' in sys.modules, 'jsonschema' in sys.modules)"

    done = subprocess.run([recipes_python, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_all_that_scripts_import_from_ray_is_installed(recipes_python: Path) -> None:
    code = "import ray.rllib, ray.train.torch, ray.tune, gymnasium"

    subprocess.run([recipes_python, "-W", "ignore", "-c", code], capture_output=True, check=True)
