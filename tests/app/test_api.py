"""`composesim.run` and `composesim.check` work in a fresh interpreter, in a notebook and from a thread."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import composesim
import pytest
from jupyter_client.manager import start_new_kernel

from tests.builders import PATIENCE_S

# Bare processes on the local engine: nothing imports torch, so a run takes a second.
BARE: dict[str, Any] = {"nodes": 2, "engine": "local", "launcher": "env"}
PRELUDE = f"import os, composesim\nBARE = {BARE}\n"
SUMS_RANKS = """
import torch, torch.distributed as dist

def sum_of_ranks(start, *, factor=1):
    dist.init_process_group("gloo")
    total = torch.tensor([float(dist.get_rank() + start)])
    dist.all_reduce(total)
    dist.destroy_process_group()
    return total.item() * factor
"""
WRONG = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    for inputs, targets in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
dist.destroy_process_group()
"""


def python(folder: Path, code: str) -> Any:
    """Run code in a new interpreter, and return what it prints, as JSON."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore:Failed to initialize NumPy:UserWarning", "-c", PRELUDE + code],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make an empty folder the project."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_script_returns_its_report(here: Path) -> None:
    (here / "train.py").write_text("")

    report = python(here, "import json\nprint(json.dumps(composesim.run('train.py', args=[0.25], **BARE).to_dict()))")

    assert (report["verdict"], report["world_size"], report["program"]) == ("passed", 2, "train.py 0.25")


def test_a_script_that_fails_returns_its_report(here: Path) -> None:
    (here / "train.py").write_text("raise ValueError('boom')\n")

    report = composesim.run("train.py", **BARE)

    assert (report.verdict, report.exit_code) == ("failed", 1)
    assert report.cause.message == "ValueError: boom"


def test_settings_come_from_the_file_then_the_spec_then_the_arguments(here: Path) -> None:
    (here / "train.py").write_text("")
    (here / "composesim.yaml").write_text("nodes: 3\nnproc_per_node: 3\nlauncher: env\n")
    spec = composesim.ClusterSpec(nproc_per_node=2, nodes=4, engine="local")

    report = composesim.run("train.py", spec=spec, nodes=1)

    assert [node.ranks for node in report.nodes] == [(0, 1)]


def test_a_function_returns_its_values_by_rank(here: Path) -> None:
    (here / "mine.py").write_text("import os\ndef place(n):\n    return int(os.environ['RANK']) + n, __name__\n")

    values = python(here, "import json, mine\nprint(json.dumps(composesim.run(mine.place, args=[5], **BARE)))")

    assert values == [[5, "mine"], [6, "mine"]]


def test_classes_of_the_main_program_come_back_as_the_same_classes(here: Path) -> None:
    """A closure, a global, a default and a class of a program that the ranks cannot import."""
    code = """
class Point:
    def __init__(self, x): self.x = x
offset = 10
def make(scale):
    def at(shift=1):
        return Point(scale * int(os.environ["RANK"]) + offset + shift)
    return at
points = composesim.run(make(2), kwargs={"shift": 3}, **BARE)
print([int(isinstance(point, Point) and point.x) for point in points])
"""
    assert python(here, code) == [13, 15]


def test_the_first_failure_is_raised_with_the_traceback_of_its_rank(here: Path) -> None:
    def divide(by: list[int]) -> float:
        import os
        import time

        if os.environ["RANK"] == "0":
            time.sleep(PATIENCE_S)
        return 1 / by[int(os.environ["RANK"])]

    with pytest.raises(composesim.RunError, match="rank 1 on node-1: ZeroDivisionError: division by zero") as caught:
        composesim.run(divide, args=([1, 0],), **BARE)

    error = caught.value
    assert (error.rank, error.node) == (1, "node-1")
    frames = [line for line in error.traceback.splitlines() if line.startswith("  File ")]
    assert len(frames) == 1
    assert "in divide" in frames[0]
    assert "return 1 / by[" in error.traceback
    assert error.traceback in error.__notes__
    assert list(here.glob(".composesim/runs/*/shared/*")) == []


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return (each for each in ())", "rank . on node-.: TypeError: .*ends.. returned a value of type generator"),
        ("import sys; sys.exit(0)", r"rank 0 exited before .*ends\(\) returned"),
        ("import sys; sys.exit(3)", "rank . on node-.: exited with code 3|rank . .*3"),
    ],
)
def test_a_rank_that_returns_nothing_usable_is_an_error(here: Path, body: str, message: str) -> None:
    names: dict[str, Any] = {}
    exec(f"def ends():\n    {body}\n", names)

    with pytest.raises(composesim.RunError, match=message):
        composesim.run(names["ends"], **BARE)


def test_a_value_that_cannot_be_loaded_here_is_an_error(here: Path) -> None:
    class Sly:
        def __reduce__(self) -> Any:
            return int, ("x",)

    with pytest.raises(composesim.RunError, match="returned on rank 0 cannot be loaded here: invalid literal"):
        composesim.run(Sly, **BARE)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"nodes": 0}, "nodes: '0' is too small"),
        ({"nodez": 4}, "unknown argument 'nodez'; did you mean 'nodes'?"),
        ({"engine": "dokcer"}, "engine: 'dokcer' is not one of auto, docker, local"),
        ({"memory": "lots"}, "memory: 'lots' is not a size"),
        ({"services": "jupiter"}, "services: there is no service 'jupiter'"),
        ({"kwargs": {"lr": 1}}, "kwargs: a script takes no keyword arguments"),
        ({"file": "missing.yaml"}, "the spec file 'missing.yaml' does not exist"),
    ],
)
def test_a_wrong_argument_is_named(here: Path, arguments: dict[str, Any], message: str) -> None:
    (here / "train.py").write_text("")

    with pytest.raises(composesim.SpecError) as caught:
        composesim.run("train.py", **arguments)

    assert caught.value.message.startswith(message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"only": "set-epok"}, "only: there is no check 'set-epok'; did you mean 'set-epoch'?"),
        ({"only": ["hang"], "skip": "hang"}, "--only and --skip leave no checks to run"),
        ({"steps": 0}, "steps: '0' is too small"),
    ],
)
def test_a_wrong_argument_of_check_is_named(here: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(composesim.SpecError) as caught:
        composesim.check("train.py", **arguments)

    assert caught.value.message.startswith(message)


def test_a_function_that_cannot_be_pickled_starts_nothing(here: Path) -> None:
    generator = (each for each in ())

    with pytest.raises(composesim.SpecError, match="cannot be pickled: cannot pickle 'generator' object"):
        composesim.run(lambda: generator, **BARE)

    assert not (here / ".composesim" / "runs").exists()


def test_output_receives_what_ranks_print(here: Path) -> None:
    lines: list[str] = []

    composesim.run(lambda: print("hello"), output=lines.append, **BARE)

    assert sorted(lines) == ["node-0 | hello", "node-1 | hello"]


def test_a_thread_can_run_and_no_process_or_lock_is_left(here: Path) -> None:
    code = """
import psutil, threading
from pathlib import Path
values, descriptors = [], psutil.Process().num_fds()
thread = threading.Thread(target=lambda: values.extend(composesim.run(lambda: 7, name="again", **BARE)))
thread.start(); thread.join()
values += composesim.run(lambda: 8, name="again", **BARE)
children = psutil.Process().children(recursive=True)
print([*values, len(children), len(threading.enumerate()), psutil.Process().num_fds() - descriptors])
"""
    assert python(here, code) == [7, 7, 8, 8, 0, 1, 0]


def test_ctrl_c_removes_the_nodes_and_is_raised(here: Path) -> None:
    code = """
import json, signal
def interrupt(line):
    if line == "node-0 | begun":
        signal.raise_signal(signal.SIGINT)
def waits():
    print("begun", flush=True)
    while True:
        signal.pause()
try:
    composesim.run(waits, name="cut-short", output=interrupt, **BARE)
except KeyboardInterrupt:
    print(json.dumps(json.load(open(".composesim/runs/cut-short/report.json"))["verdict"]))
"""
    assert python(here, code) == "interrupted"


def test_importing_it_imports_no_heavy_library(here: Path) -> None:
    code = (
        "import json, sys\nprint(json.dumps([name for name in ('pydantic', 'torch', 'rich') if name in sys.modules]))"
    )

    assert python(here, code) == []


def test_what_it_offers_is_what_it_lists() -> None:
    assert {name for name in composesim.__all__ if not hasattr(composesim, name)} == set()
    with pytest.raises(AttributeError):
        _ = composesim.runn  # type: ignore[attr-defined]


def test_a_notebook_runs_a_function_of_a_cell(here: Path) -> None:
    """In a real Jupyter kernel: the traceback shows the line of the cell, which no file holds."""
    manager, client = start_new_kernel(cwd=str(here))
    try:
        run_cell(client, PRELUDE)
        cell = "def place(n):\n    return n / (2 - int(os.environ['RANK']) * n)\n"
        assert run_cell(client, f"{cell}composesim.run(place, args=[1], **BARE)") == "[0.5, 1.0]"
        failing = "try:\n    composesim.run(place, args=[2], **BARE)\nexcept composesim.RunError as error:\n    print(error.traceback)"
        assert "    return n / (2 - int(os.environ['RANK']) * n)\n" in run_cell(client, failing)
        assert "hello" in run_cell(client, "values = composesim.run(lambda: print('hello'), output=print, **BARE)")
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def run_cell(client: Any, code: str) -> str:
    """Return what a cell prints, or else its value."""
    texts: list[str] = []

    def output(message: dict[str, Any]) -> None:
        content = message["content"]
        if message["msg_type"] == "stream":
            texts.append(content["text"])
        if message["msg_type"] == "execute_result":
            texts.append(content["data"]["text/plain"])

    reply = client.execute_interactive(code, timeout=PATIENCE_S, output_hook=output)
    assert reply["content"]["status"] == "ok", reply["content"]
    return "".join(texts)


@pytest.mark.train
def test_a_function_takes_part_in_a_process_group(here: Path) -> None:
    (here / "ranks.py").write_text(SUMS_RANKS)
    call = "composesim.run(ranks.sum_of_ranks, args=(10,), kwargs={'factor': 2}, nodes=2, engine='local')"
    code = f"import ranks\nprint({call})"

    assert python(here, code) == [
        42,
        42,
    ]


@pytest.mark.train
def test_a_wrong_script_fails_its_check(here: Path) -> None:
    (here / "train.py").write_text(WRONG)

    report = composesim.check("train.py", only="set-epoch,params-in-sync", engine="local")

    assert {check.id: check.status for check in report.checks} == {
        "params-in-sync": "passed",
        "set-epoch": "failed",
    }
    assert (report.verdict, report.world_size) == ("failed", 4)


@pytest.mark.train
@pytest.mark.docker
def test_a_function_runs_in_containers(here: Path) -> None:
    code = f"{SUMS_RANKS}print(composesim.run(sum_of_ranks, args=(10,), nodes=2, engine='docker'))"

    assert python(here, code) == [21, 21]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root works in the projects of others")
def test_root_loads_no_values_that_another_user_could_write(here: Path) -> None:
    os.chown(here, 65534, 65534)

    with pytest.raises(composesim.SpecError, match="this project belongs to nobody"):
        composesim.run(len, args=([1],), **BARE)
