"""The report names what went wrong first, on every engine."""

from __future__ import annotations

import pytest

from tests.builders import ROOT
from tests.scenarios.conftest import BARE, PAUSES, Project

pytestmark = pytest.mark.train

JOINED = "import os, sys, torch.distributed as dist\ndist.init_process_group('gloo')\nrank = dist.get_rank()\n"


def test_the_default_workload_passes_and_learns(project: Project, engine: str) -> None:
    outcome = project.run("up", "--engine", engine, "--nodes", "2", "--json", str(ROOT / "train_ddp.py"))
    report = outcome.report

    assert outcome.status == 0
    assert report["verdict"] == "passed"
    assert report["cause"] is None
    assert report["metrics"]["accuracy"] >= 0.95
    assert [node["exit_code"] for node in report["nodes"]] == [0, 0]
    assert report["timings"]["first_step_s"] > 0


def test_an_exception_is_the_cause_with_its_traceback(project: Project, engine: str) -> None:
    script = project.write("train.py", JOINED + "if rank == 1: raise ValueError('bad batch')\ndist.barrier()\n")
    outcome = project.run("up", "--engine", engine, "--nodes", "2", "--json", script)
    cause = outcome.report["cause"]

    assert outcome.status == 1
    assert (cause["node"], cause["rank"], cause["kind"]) == ("node-1", 1, "exception")
    assert cause["message"] == "ValueError: bad batch"
    assert 'File "' in cause["traceback"]
    assert "compose_sim" not in cause["traceback"]


@pytest.mark.parametrize(
    ("code", "kind", "message"),
    [
        (
            "import atexit; atexit.register(threading.Event().wait); atexit.register(dist.destroy_process_group); 1 / 0",
            "exception",
            "ZeroDivisionError: division by zero",  # not that of rank 0, though rank 1 is stopped before it has exited
        ),
        ("sys.exit(3)", "exit", "rank 1 exited with status 3"),
        ("sys.exit('no conf.yaml')", "exit", "rank 1 exited with status 1: no conf.yaml"),
        ("import ctypes; ctypes.string_at(0)", "signal", "rank 1 was killed by SIGSEGV"),
        ("os.abort()", "signal", "rank 1 was killed by SIGABRT"),
        (
            "import atexit; atexit.register(os.abort); dist.barrier(); sys.exit()",
            "teardown",
            "rank 1 crashed in teardown, after training ended (SIGABRT)",
        ),
    ],
)
def test_how_a_rank_ended_is_told(project: Project, code: str, kind: str, message: str) -> None:
    script = project.write("train.py", "import threading\n" + JOINED + f"if rank == 1: {code}\ndist.barrier()\n")
    outcome = project.run("up", "--engine", "local", "--nodes", "2", "--json", script)
    cause = outcome.report["cause"]

    assert outcome.status == 1
    assert (cause["rank"], cause["kind"], cause["message"]) == (1, kind, message)


ALONE = """
import torch
from torch.nn.parallel import DistributedDataParallel

model = DistributedDataParallel(torch.nn.Linear(8, 4))
for step in range(10):
    model(torch.randn(16, 8)).mean().backward()
    if rank == 0 and step == 5:
        dist.all_reduce(torch.zeros(1))
"""


def test_a_collective_of_one_rank_is_named_with_its_line(project: Project) -> None:
    """Gloo ends a process, because the others reduce gradients, and not all builds of it do so in the same rank."""
    script = project.write("train.py", JOINED + ALONE)
    outcome = project.run("up", "--engine", "local", "--nodes", "2", "--json", script)
    mismatch = next(check for check in outcome.report["checks"] if check["id"] == "collective-mismatch")
    line = f"{JOINED}{ALONE}".splitlines().index("        dist.all_reduce(torch.zeros(1))") + 1

    assert outcome.status == 1
    assert mismatch["status"] == "failed"
    assert mismatch["place"]["line"] == line
    assert [hint["place"]["line"] for hint in outcome.report["hints"]] == [line]
    assert outcome.report["cause"]["rank"] is not None
    assert "train.py, line " in outcome.report["cause"]["message"] + outcome.report["cause"]["traceback"]


@pytest.mark.parametrize("launcher", ["warm", "torchrun"])
@pytest.mark.parametrize(
    ("module", "call"), [("calendar", "calendar.mine()"), ("torch", "torch.mine()"), ("json", "json.mine()")]
)
def test_a_module_of_the_project_is_imported_as_under_python(
    project: Project, launcher: str, module: str, call: str
) -> None:
    project.write(f"{module}.py", "def mine(): return 'mine'\n")
    script = project.write("train.py", f"import {module}\nprint({call})\n")
    outcome = project.run("up", "--launcher", launcher, "--engine", "local", "--nodes", "1", script)

    assert outcome.status == 0
    assert outcome.stdout == "node-0 | mine\n"


def test_a_rank_that_never_joins_is_found_without_a_timeout(project: Project, engine: str) -> None:
    script = project.write("train.py", "import os, sys\nif os.environ['RANK'] == '1': sys.exit()\n" + JOINED)
    outcome = project.run("up", "--engine", engine, "--nodes", "2", "--json", script)

    assert outcome.status == 124
    assert outcome.report["verdict"] == "hung"
    assert outcome.report["cause"]["rank"] == 1


def test_the_timeout_ends_the_run(project: Project, engine: str) -> None:
    script = project.write("train.py", PAUSES)
    outcome = project.run("up", *BARE, "--engine", engine, "--nodes", "2", "--timeout", "4s", "--json", script)

    assert outcome.status == 124
    assert outcome.report["verdict"] == "timeout"


def test_what_a_rank_prints_reaches_stdout_with_its_node(project: Project, engine: str) -> None:
    script = project.write("hello.py", "import os\nprint('I am', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n")
    outcome = project.run("up", *BARE, "--engine", engine, "--nodes", "2", script)

    assert outcome.status == 0
    assert sorted(outcome.stdout.splitlines()) == ["node-0 | I am 0 of 2", "node-1 | I am 1 of 2"]
    assert "passed" in outcome.stderr.splitlines()[-1]


def test_a_module_runs_as_a_script_does(project: Project) -> None:
    (project.folder / "package").mkdir()
    (project.folder / "package" / "__init__.py").write_text("")
    (project.folder / "package" / "train.py").write_text("import sys\nprint(__name__, sys.argv[1:])\n")
    outcome = project.run("up", *BARE, "--engine", "local", "--nodes", "1", "-m", "package.train", "--epochs", "3")

    assert outcome.stdout == "node-0 | __main__ ['--epochs', '3']\n"


def test_words_after_two_dashes_are_the_default_scripts(project: Project) -> None:
    outcome = project.run("up", "--engine", "local", "--nodes", "1", "--json", "--", "--epochs", "1")

    assert outcome.status == 0
    assert outcome.report["metrics"]["epoch"] == 1


def test_a_flood_of_lines_arrives_whole(project: Project, engine: str) -> None:
    script = project.write("flood.py", "import os\nfor n in range(20_000): print(os.environ['RANK'], n)\n")
    outcome = project.run("up", *BARE, "--engine", engine, "--nodes", "2", script)
    lines = [line.split(" | ")[1] for line in outcome.stdout.splitlines()]

    for rank in (0, 1):
        assert [line for line in lines if line.startswith(f"{rank} ")] == [f"{rank} {n}" for n in range(20_000)]


def test_a_script_that_imports_the_compiler_ends_with_its_own_output(project: Project) -> None:
    """Triton would print what it holds when a process exits."""
    script = project.write(
        "train.py", JOINED + "import torch._dynamo\nprint('end', rank)\ndist.destroy_process_group()\n"
    )
    run = project.named("quiet")
    outcome = project.run("up", "--engine", "local", "--gpus", "none", "--nodes", "1", "--name", run, "--json", script)

    assert outcome.status == 0
    log = (project.folder / f".composesim/runs/{run}/logs/node-0.0.log").read_text()
    assert log.splitlines()[-1] == "end 0"
    assert "leaked" not in log


def test_the_line_of_a_rank_that_holds_up_the_others_is_named(project: Project) -> None:
    script = project.write(
        "train.py",
        "import time\n"
        + JOINED
        + "import torch\nlayer = torch.nn.Linear(2, 2)\noptimizer = torch.optim.SGD(layer.parameters(), lr=0.1)\n"
        "for step in range(6):\n"
        "    if rank == 1:\n"
        "        time.sleep(0.5)\n"
        "    dist.barrier()\n"
        "    optimizer.step()\n"
        "dist.destroy_process_group()\n",
    )
    outcome = project.run("up", "--engine", "local", "--nodes", "3", "--json", script)

    assert outcome.status == 0
    assert [each["late_at"] for each in outcome.report["rank_times"]][1] == "train.py, line 10"
    (line,) = (each for each in project.run("report").stdout.splitlines() if each.startswith("slowest"))
    assert line.endswith("mostly at train.py, line 10")
