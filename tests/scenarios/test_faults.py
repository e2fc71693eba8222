"""Each kind of fault takes effect in a real run, and the run recovers: all of them in a row, in one run per engine.

Each line of FAULTS has a command, the sign of its effect, and the sign of its end.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.builders import PATIENCE_S
from tests.scenarios.conftest import Outcome, Project, eventually, project_in

pytestmark = pytest.mark.train

# Reports every step, and which ordinary operations failed in it.
SCRIPT = """
import json, os, threading, time
from pathlib import Path
import torch
import torch.distributed as dist

shared, scratch = Path(os.environ["COMPOSESIM_SHARED"]), os.environ.get("COMPOSESIM_SCRATCH", "/tmp")
dist.init_process_group("gloo")
rank, step = dist.get_rank(), 0
checkpoint = shared / "checkpoint.pt"
if rank == 0 and not checkpoint.exists():
    torch.save(torch.arange(1000), shared / "new")
    (shared / "new").rename(checkpoint)
weight = torch.nn.Parameter(torch.zeros(4))
optimizer = torch.optim.SGD([weight], lr=0.1)
while True:
    end = torch.tensor(float((shared / "stop").exists()))
    dist.all_reduce(end)
    if end:
        break
    weight.grad = torch.ones(4)
    dist.all_reduce(weight.grad)
    optimizer.step()
    step, failed = step + 1, []
    path = f"{scratch}/{os.getpid()}-{step}"
    try:
        with open(path, "wb") as file:
            file.write(bytes(10_000))
            time.sleep(0.01)  # so that a fault often begins while a rank holds what it is about to give back
    except OSError as error:
        failed.append(error.strerror)
    if os.path.exists(path):
        os.unlink(path)
    try:
        thread = threading.Thread(target=time.sleep, args=(0.01,))
        thread.start()
    except RuntimeError as error:
        if "start new thread" not in str(error):  # an injected fault is a RuntimeError too
            raise
        failed.append(str(error))
    else:
        thread.join()
    print(json.dumps({"step": step, "rank": rank, "failed": failed}), flush=True)
dist.destroy_process_group()
"""


@dataclass
class Run:
    """A running run of SCRIPT on three nodes."""

    project: Project
    name: str

    @property
    def folder(self) -> Path:
        return self.project.folder / ".composesim" / "runs" / self.name

    @property
    def shared(self) -> Path:
        return self.folder / "shared"

    def composesim(self, *argv: str) -> Outcome:
        return self.project.run(*argv, "--run", self.name)

    def events(self, kind: str, **data: Any) -> list[dict[str, Any]]:
        """Return all events of a kind with these values in the data."""
        patterns = ("journal/*.jsonl", "events/*.jsonl")
        files = [file for pattern in patterns for file in self.project.written(self.name, pattern)]
        lines = (line for file in files for line in file.read_text().splitlines(keepends=True) if line.endswith("\n"))
        found = [json.loads(line) for line in lines if f'"kind": "{kind}"' in line]
        return [event for event in found if data.items() <= event["data"].items()]

    def turns(self, failed: str = "") -> int:
        """Return how many steps all ranks have made, or in how many of them this operation failed."""
        logs = (file.read_text(errors="replace") for file in self.project.written(self.name, "logs/node-*.*.log"))
        return sum(
            f'"failed": ["{failed}' in line if failed else '"failed"' in line
            for log in logs
            for line in log.splitlines()
        )

    def goes_on(self) -> None:
        """Wait until all ranks make steps in which nothing fails."""
        known = self.turns("")
        eventually(lambda: self.turns() > known + 9, within=PATIENCE_S, what=f"{self.name} goes on")

    def stands_still(self) -> bool:
        """Return whether no rank makes a step within the time of many steps."""
        known = self.turns()
        time.sleep(0.5)
        return self.turns() == known


Check = Callable[[Run, dict[str, Any]], bool]  # of the fault's first event


@dataclass(frozen=True)
class Case:
    """A kind of fault: the arguments of `fault`, and how to see the effect and the end."""

    words: str
    bit: Check
    over: Check
    healed: bool = False  # with `heal`, because it lasts
    engines: tuple[str, ...] = ("local", "docker")

    @property
    def kind(self) -> str:
        return self.words.split()[0]


def told_since(kind: str, run: Run, fault: dict[str, Any], **data: Any) -> bool:
    """Return whether the node that the fault names emitted an event of this kind after the fault."""
    found = run.events(kind, **data)
    return any(each["t"] >= fault["t"] and each["node"] in fault["data"]["loses"] for each in found)


def recovered(run: Run, fault: dict[str, Any]) -> bool:
    """Return whether training was reported to have continued after this fault."""
    return bool(run.events("recovered", id=fault["data"]["id"]))


def two_take_part(run: Run, fault: dict[str, Any]) -> bool:
    """Return whether the others have begun a round without the silent node."""
    return _nodes_since(run, fault)[-1:] == [2]


def all_take_part(run: Run, fault: dict[str, Any]) -> bool:
    """Return whether the last round has all nodes, and began after the fault."""
    return _nodes_since(run, fault)[-1:] == [3]


def _nodes_since(run: Run, fault: dict[str, Any]) -> list[int]:
    return [len(round_["data"]["nodes"]) for round_ in run.events("round") if round_["t"] > fault["t"]]


def stands_still(run: Run, _: dict[str, Any]) -> bool:
    return run.stands_still()


def cannot(what: str, run: Run, _: dict[str, Any]) -> bool:
    """Return whether a rank has reported a failed operation since then."""
    return run.turns(what) > 0


def checkpoint_is_broken(run: Run, _: dict[str, Any]) -> bool:
    """Return whether half of it is left."""
    return (run.shared / "checkpoint.pt").stat().st_size == (run.project.folder / "whole").stat().st_size // 2


def checkpoint_is_whole(run: Run, _: dict[str, Any]) -> bool:
    return (run.shared / "checkpoint.pt").read_bytes() == (run.project.folder / "whole").read_bytes()


def goes_on(run: Run, _: dict[str, Any]) -> bool:
    run.goes_on()
    return True


def ends_rank(words: str, event: str = "rank-exited", **how: Any) -> Case:
    engines = ("docker",) if words.startswith("memory") else ("local", "docker")
    return Case(words, partial(told_since, event, **how), recovered, engines=engines)


FAULTS = [
    ends_rank("rank-raise 1", "exception", type="InjectedFault"),
    ends_rank("rank-exit 2 --code 3", exit_code=3),
    ends_rank("rank-segfault 0", signal=11),
    ends_rank("rank-abort 1", signal=6),
    ends_rank("rank-kill 2", signal=9, oom=False),
    ends_rank("rank-term 0", signal=15),
    ends_rank("rank-interrupt 1", "exception", type="KeyboardInterrupt"),
    ends_rank("memory node-2", signal=9, oom=True),
    ends_rank("gpu-error node-1 --kind oom", "exception", type="OutOfMemoryError"),
    Case("rank-stop 0", stands_still, goes_on, healed=True),
    Case("rank-hang 1", stands_still, goes_on, healed=True),
    Case("rank-lock-gil 2", stands_still, goes_on, healed=True),
    Case("rank-files-full 1", partial(cannot, "Too many open files"), goes_on, healed=True),
    Case("corrupt-checkpoint", checkpoint_is_broken, checkpoint_is_whole, healed=True),
    Case("disk-full node-1", partial(cannot, "No space left on device"), goes_on, healed=True, engines=("docker",)),
    Case("kill node-1", partial(told_since, "node-stopped"), all_take_part, healed=True, engines=("local",)),
    Case("term node-2", partial(told_since, "node-stopped"), all_take_part, healed=True, engines=("docker",)),
    Case("preempt node-2 --grace 1s", partial(told_since, "node-stopped"), all_take_part, engines=("local",)),
    Case("stop node-0", two_take_part, all_take_part, healed=True, engines=("local",)),
    Case("pause node-1", two_take_part, all_take_part, healed=True, engines=("docker",)),
    Case("restart node-2", partial(told_since, "node-stopped"), all_take_part, engines=("docker",)),
    Case("processes-full node-0", partial(cannot, "can't start new thread"), goes_on, healed=True, engines=("docker",)),
]


@pytest.fixture(scope="module")
def local_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A run of plain processes for all faults."""
    yield from run_in(tmp_path_factory.mktemp("local"), "--engine", "local")


@pytest.fixture(scope="module")
def docker_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """The same in containers, with limited memory and a separate disk."""
    yield from run_in(tmp_path_factory.mktemp("docker"), "--engine", "docker", "--memory", "1g", "--scratch", "16m")


def run_in(folder: Path, *options: str) -> Iterator[Run]:
    """A running run; in the end it passes as if nothing had happened."""
    for project in project_in(folder):
        script = project.write("train.py", SCRIPT)
        run = Run(project, project.named("faults"))
        begun = project.run(
            "up",
            "--name",
            run.name,
            "--detach",
            "--nodes",
            "3",
            "--elastic",
            "2:3",
            "--node-timeout",
            "10s",
            *options,
            script,
        )
        assert begun.status == 0, begun.stderr
        try:
            run.goes_on()
            (folder / "whole").write_bytes((run.shared / "checkpoint.pt").read_bytes())
            yield run
            (run.shared / "stop").touch()
            ended = run.composesim("wait")
        finally:
            run.composesim("down")
        assert ended.status == 0, ended.stdout + ended.stderr


def faults_of(engine: str) -> list[Any]:
    """Each kind that the engine supports."""
    return [pytest.param(case, id=case.kind) for case in FAULTS if engine in case.engines]


@pytest.mark.parametrize("case", faults_of("local"))
def test_a_fault_bites_and_is_over(local_run: Run, case: Case) -> None:
    bite_and_be_over(local_run, case)


@pytest.mark.docker
@pytest.mark.parametrize("case", faults_of("docker"))
def test_a_fault_bites_and_is_over_in_containers(docker_run: Run, case: Case) -> None:
    bite_and_be_over(docker_run, case)


def bite_and_be_over(run: Run, case: Case) -> None:
    """Inject the fault, wait for the effect, heal the fault if it lasts, and wait until training continues."""
    kind, *words = case.words.split()
    told = run.composesim("fault", kind, *words, "--json")
    assert told.status == 0, told.stderr
    (fault,) = run.events("fault", id=told.report["id"], phase="begun")

    eventually(lambda: case.bit(run, fault), within=PATIENCE_S, what=f"{kind} bites")
    if case.healed:
        healed = run.composesim("heal", fault["data"]["id"])
        assert healed.status == 0, healed.stderr
    eventually(lambda: case.over(run, fault), within=PATIENCE_S, what=f"{kind} is over")
    run.goes_on()


def test_a_hang_on_purpose_is_found_like_any_other(project: Project) -> None:
    """The report names the rank, its line, and the fault that caused it."""
    name, script = project.named("hangs"), project.write("train.py", SCRIPT)
    options = ("--engine", "local", "--nodes", "2", "--hang-timeout", "5s")
    begun = project.run("up", "--name", name, "--detach", *options, script)
    assert begun.status == 0, begun.stderr
    run = Run(project, name)
    run.goes_on()

    assert run.composesim("fault", "rank", "1", "hang").status == 0
    assert run.composesim("wait").status == 124
    cause = project.report_of(name)["cause"]
    assert (cause["kind"], cause["rank"], cause["node"]) == ("hang", 1, "node-1")
    assert "train.py, line " in cause["message"]
    assert "rank 0 waits for it in all_reduce" in cause["message"]
