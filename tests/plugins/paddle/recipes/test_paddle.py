"""Paddle's recipes do what their page says on real nodes; everything else works as for torch."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path

import pytest

from tests.builders import PATIENCE_S, ROOT
from tests.scenarios.conftest import Project, eventually

pytestmark = pytest.mark.recipes

EXAMPLE = ROOT / "compose_sim/plugins/paddle/templates/examples/paddle_digits.py"
# Prints how many ranks there are, until a file exists.
COUNTS = """
import json, os, time
import paddle, paddle.distributed as dist

dist.init_parallel_env()
end = os.path.join(os.environ["COMPOSESIM_SHARED"], "end")
for step in range(100000):
    counted = paddle.to_tensor([1, int(os.path.exists(end))])
    if dist.get_world_size() > 1:
        dist.all_reduce(counted)
    if dist.get_rank() == 0:
        print(json.dumps({"step": step, "ranks": int(counted[0])}), flush=True)
    if int(counted[1]):  # as all see it, or one would wait for the others
        break
    time.sleep(0.05)
"""
# The first argument selects the failure.
FAULTY = """
import sys, time
import paddle, paddle.distributed as dist

dist.init_parallel_env()
model = paddle.DataParallel(paddle.nn.Linear(4, 2))
optimizer = paddle.optimizer.SGD(parameters=model.parameters())
for step in range(10):
    if step == 5 and dist.get_rank() == 1:
        if sys.argv[1] == "raise":
            raise ValueError("no such digit")
        time.sleep(3600)
    model(paddle.ones([3, 4])).sum().backward()
    optimizer.step()
"""


def words(python: Path, run: str, *more: str, engine: str) -> tuple[str, ...]:
    common = ("--json", "--recipe", "paddle", "--engine", engine, "--nodes", "2")
    return ("up", *common, "--python", str(python), "--name", run, *more)


@pytest.mark.docker
def test_the_example_comes_to_its_end_on_two_nodes(project: Project, recipes_python: Path) -> None:
    """Output, steps and versions are in the same places as for torch; Paddle leaves no files behind."""
    run = project.named("digits")

    done = project.run(*words(recipes_python, run, engine="docker"))

    report = done.report
    assert (report["verdict"], done.status, report["world_size"]) == ("passed", 0, 2), done
    assert report["metrics"]["accuracy"] > 0.9
    assert [node["steps"] for node in report["nodes"]] == [110, 110]
    assert report["versions"]["paddle"].startswith("3.")
    assert report["versions"]["torch"] is None
    applicable = {check["id"]: check["status"] for check in report["checks"] if check["status"] != "not-applicable"}
    assert applicable == {"hang": "passed"}
    assert {path.name for path in project.written(run, "logs/*.*.log")} == {"node-0.0.log", "node-1.1.log"}
    assert '{"step": 110, "epoch": 5, "accuracy": ' in project.log_of(run, "node-0.0")
    assert list(project.folder.rglob("workerlog*")) + list(project.folder.rglob("*env*.json")) == []


def test_the_same_script_runs_under_paddles_launcher_alone(tmp_path: Path, recipes_python: Path) -> None:
    """Unchanged, also when it resumes from a checkpoint."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("COMPOSESIM_", "PYTHON"))}
    launch = [recipes_python, "-m", "paddle.distributed.launch", "--nproc_per_node", "2", EXAMPLE]
    for more in (["--epochs", "1"], ["--epochs", "2", "--resume"]):
        subprocess.run([*launch, *more], cwd=tmp_path, env=plain, timeout=PATIENCE_S, check=True, capture_output=True)

    printed = (tmp_path / "log" / "workerlog.0").read_text().splitlines()
    steps = [json.loads(line)["step"] for line in printed if line.startswith("{")]
    assert steps == [5, 10, 15, 20, 22, 25, 30, 35, 40, 44]


@pytest.mark.docker
def test_training_goes_on_without_a_node_and_with_it_again(project: Project, recipes_python: Path) -> None:
    """The killed node is the first: afterwards, Paddle's master and rank 0 are on the other one."""
    script, run = project.write("counts.py", COUNTS), project.named("elastic")
    more = ("--elastic", "1:2", script)
    process = project.start(*words(recipes_python, run, *more, engine="docker"))

    def says(ranks: int, since: dict[str, int]) -> bool:
        """Return whether a rank 0 has counted this many ranks in its output since then."""
        return any(
            f'"ranks": {ranks}}}' in path.read_text()[since.get(path.name, 0) :]
            for path in project.written(run, "logs/*.0.log")
        )

    def printed() -> dict[str, int]:
        return {path.name: path.stat().st_size for path in project.written(run, "logs/*.0.log")}

    eventually(lambda: says(2, {}), within=PATIENCE_S, what="two ranks train")
    before = printed()
    assert project.run("fault", "kill", "node-0", "--run", run).status == 0
    eventually(lambda: says(1, before), within=PATIENCE_S, what="one rank goes on alone")
    before = printed()
    assert project.run("heal", "--run", run).status == 0
    eventually(lambda: says(2, before), within=PATIENCE_S, what="both train again")
    (project.folder / ".composesim" / "runs" / run / "shared" / "end").touch()
    process.communicate(timeout=PATIENCE_S)

    report = project.report_of(run)
    assert (process.returncode, report["verdict"]) == (0, "passed")
    assert {1, 2} == {each["world_size"] for each in report["rounds"]}


def test_what_a_rank_raises_is_the_cause(project: Project, recipes_python: Path) -> None:
    """Other ranks only notice that it has gone; the traceback is that of the script."""
    script, run = project.write("faulty.py", FAULTY), project.named("raises")

    done = project.run(*words(recipes_python, run, script, "raise", engine="local"))

    cause = done.report["cause"]
    assert (done.status, cause["rank"], cause["node"]) == (1, 1, "node-1")
    assert cause["message"] == "ValueError: no such digit"
    assert cause["traceback"].count("File") == 1


def test_a_rank_that_others_wait_for_is_found(project: Project, recipes_python: Path) -> None:
    """They wait in the all-reduce of Paddle's backward pass."""
    script, run = project.write("faulty.py", FAULTY), project.named("hangs")

    done = project.run(*words(recipes_python, run, "--hang-timeout", "3s", script, "hang", engine="local"))

    assert (done.status, done.report["verdict"]) == (124, "hung")
    assert done.report["cause"]["message"] == (
        "rank 1 on node-1 sleeps at faulty.py, line 12: `time.sleep(3600)`, "
        "while rank 0 waits for it in backward (faulty.py, line 13)"
    )


@pytest.mark.docker
def test_an_image_without_paddle(project: Project) -> None:
    """The Python may have torch, which does not help."""
    script, run = project.write("train.py", "import paddle"), project.named("image")
    more = ("--image", "composesim-test-image:1", script)

    done = project.run("up", "--json", "--recipe", "paddle", "--engine", "docker", "--name", run, *more)

    cause = done.report["cause"]
    assert (done.status, cause["kind"]) == (1, "start")
    assert cause["message"].startswith("paddle is not installed for ")
    assert cause["traceback"].startswith("Try: composesim image build --recipe paddle")


def test_a_port_that_is_taken(project: Project, recipes_python: Path) -> None:
    """It is refused before the start: Paddle's launcher would take any listener for its master, and wait forever."""
    script, run = project.write("train.py", "import paddle"), project.named("port")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        done = project.run(*words(recipes_python, run, "--master-port", str(port), script, engine="local"))

    assert done.status == 4
    assert f"port {port} of the master" in json.loads(done.stdout)["error"]["message"]


def test_a_paddle_that_is_too_old(project: Project, recipes_python: Path) -> None:
    """The check reads installed versions before a rank starts; here a folder of the user comes first."""
    old = project.folder / "site"
    (old / "paddle").mkdir(parents=True)
    (old / "paddle" / "__init__.py").touch()
    (old / "paddlepaddle-2.6.2.dist-info").mkdir()
    (old / "paddlepaddle-2.6.2.dist-info" / "METADATA").write_text("Name: paddlepaddle\nVersion: 2.6.2\n")
    script, run = project.write("train.py", "import paddle"), project.named("old")

    done = project.run(*words(recipes_python, run, "--env", f"PYTHONPATH={old}", script, engine="local"))

    assert done.status == 1
    assert done.report["cause"]["message"] == "paddle 2.6.2 is too old: 3.0 or newer is needed"


@pytest.mark.docker
def test_paddle_in_rays_actors(project: Project, recipes_python: Path) -> None:
    """One model per learning rate; one dies and resumes from a checkpoint; the best is exported and loaded elsewhere."""
    run = project.named("search")
    common = ("--recipe", "paddle-ray", "--engine", "docker", "--nodes", "2", "--option", "dashboard=off")

    done = project.run("up", "--json", *common, "--python", str(recipes_python), "--name", run)

    assert (done.status, done.report["verdict"]) == (0, "passed"), done
    printed = project.log_of(run, "driver.0").splitlines()
    *models, best = [json.loads(line) for line in printed if line.startswith("{")]
    assert {each["lr"]: each["resumed_at"] for each in models} == {0.1: 1, 0.01: 0, 0.001: 0, 0.0001: 0}
    assert {each["node"] for each in models} == {"node-0", "node-1"}
    assert all(each["epoch"] == 8 and each["in_time"] for each in models)
    assert best["accuracy"] == max(each["accuracy"] for each in models) > 0.9
    assert best["export"] < 1e-5
    assert any("(Trainer pid=" in line and ": loss " in line for line in printed), "what actors print"
