"""Every hang is explained: the rank, the line, and what the others wait in. Slow ranks are not called hung."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.builders import ROOT
from tests.scenarios.conftest import Outcome, Project, project_in

pytestmark = pytest.mark.train

ZOO = ROOT / "tests" / "zoo" / "hang"
TWO_BY_TWO = ("--nodes", "2", "--nproc-per-node", "2", "--hang-timeout", "4s")
IN_BACKWARD = "wait for it in DDP's gradient all-reduce in backward"
KINDS = [
    ("broken_asleep", 2, ["sleeps at", "line 16: `time.sleep(0.1)`", f"ranks 0, 1, 3 {IN_BACKWARD}"]),
    ("broken_two_locks", 3, ["waits for a thread or a lock", "`with file_lock:`", "`with metrics_lock:`", IN_BACKWARD]),
    ("broken_native_call", 1, ["holds the GIL", "`native.sleep(100_000)`", IN_BACKWARD]),
    ("broken_stuck_loader", 0, ["waits for its data loader", "its worker (pid ", "sleeps at", "`time.sleep(100_000)`"]),
    (
        "broken_stopped",
        1,
        ["is stopped (SIGSTOP)", "line 20: `os.kill(os.getpid(), signal.SIGSTOP)`", f"ranks 0, 2, 3 {IN_BACKWARD}"],
    ),
    (
        "broken_early_stop",
        1,
        ["rank 1 waits in barrier", "ranks 0, 2, 3 wait in DDP's gradient all-reduce in backward"],
    ),
    ("broken_barrier_on_rank_0", 0, ["rank 0 waits in barrier", "line 18", "ranks 1, 2, 3 wait in DDP's"]),
    ("broken_crossed_collectives", 0, ["ranks 0, 2 wait in all_reduce", "ranks 1, 3 wait in all_reduce"]),
]

HANGS_AT_EXIT = """\
import atexit, threading
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
parameter = torch.nn.Parameter(torch.zeros(4))
optimizer = torch.optim.SGD([parameter])
for step in range(12):
    dist.all_reduce(torch.ones(4), async_op=True)
    optimizer.step()
    if dist.get_rank() == 0 and step % 5 == 4:
        extra = torch.ones(4)
        dist.all_reduce(extra, async_op=True)
atexit.register(threading.Event().wait)
"""


a_project = contextmanager(project_in)


@dataclass(frozen=True)
class Finished:
    """Return a run of a script of the zoo that has ended."""

    project: Project
    outcome: Outcome

    @property
    def told(self) -> str:
        """Return what composesim itself recorded about the run."""
        (folder,) = (self.project.folder / ".composesim" / "runs").iterdir()
        return (folder / "journal" / "composesim.jsonl").read_text()


@pytest.fixture(scope="module")
def finished(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Finished]]:
    """Run each script that the chosen tests name, two at a time, because they wait more than they compute."""
    params = [getattr(test, "callspec", None) for test in request.session.items if test.path == request.path]
    scripts = [str(each.params["script"]) for each in params if each and "script" in each.params]
    with ExitStack() as projects, ThreadPoolExecutor(2) as pool:

        def run(script: str) -> Finished:
            outcome = project_of[script].run(
                "up", "--engine", "local", *TWO_BY_TWO, "--json", str(ZOO / f"{script}.py")
            )
            return Finished(project_of[script], outcome)

        project_of = {name: projects.enter_context(a_project(tmp_path_factory.mktemp(name))) for name in scripts}
        runs = {name: pool.submit(run, name) for name in scripts}
        yield lambda script: runs[script].result()


def hang_of(report: dict[str, Any]) -> dict[str, Any]:
    """Return the result of the check of this name."""
    (check,) = (check for check in report["checks"] if check["id"] == "hang")
    found: dict[str, Any] = check
    return found


@pytest.mark.parametrize(("script", "rank", "words"), KINDS, ids=[kind for kind, _, _ in KINDS])
def test_each_kind_of_hang_is_named(
    finished: Callable[[str], Finished], script: str, rank: int, words: list[str]
) -> None:
    outcome = finished(script).outcome
    cause, check = outcome.report["cause"], hang_of(outcome.report)

    assert outcome.status == 124
    assert outcome.report["verdict"] == "hung"
    assert (cause["kind"], cause["rank"]) == ("hang", rank)
    assert [word for word in words if word not in cause["message"]] == []
    assert all(f"rank {number} on node-{number // 2}" in cause["traceback"] for number in range(4))
    assert (check["status"], check["detail"], check["ranks"]) == ("failed", cause["message"], [rank])
    assert check["place"]["file"] == str(ZOO / f"{script}.py")


# The fourth, hard_compiles, is one of those that the zoo itself runs.
@pytest.mark.parametrize("script", ["hard_slow_evaluation", "hard_slow_download", "hard_slow_samples"])
def test_what_is_only_slow_goes_on(finished: Callable[[str], Finished], script: str) -> None:
    run = finished(script)

    assert (run.outcome.report["cause"], run.outcome.status) == (None, 0)
    assert hang_of(run.outcome.report)["status"] == "passed"
    assert '"hang"' not in run.told


def test_a_rank_that_only_waits_for_itself_is_reported_on_every_engine(project: Project, engine: str) -> None:
    """It is reported while the run continues, then the run is stopped."""
    script = project.write("train.py", (ZOO / "broken_asleep.py").read_text())
    outcome = project.run("up", "--engine", engine, *TWO_BY_TWO, script)
    told = [
        line for line in outcome.stderr.splitlines() if line.startswith("hang: rank 2 on node-1 sleeps at train.py")
    ]

    assert outcome.status == 124
    assert len(told) == 1
    assert "in DDP's gradient all-reduce in backward (train.py, line " in told[0]


def test_a_hang_at_exit_is_named_with_the_steps_made_and_the_collectives_missed(project: Project) -> None:
    """The ranks end their scripts within a moment and then wait forever, as NCCL makes them."""
    script = project.write("train.py", HANGS_AT_EXIT)
    cluster = ("--engine", "local", "--nodes", "2", "--nproc-per-node", "1", "--hang-timeout", "4s")
    outcome = project.run("check", *cluster, "--json", script)
    checks = {check["id"]: check for check in outcome.report["checks"]}

    assert (outcome.status, outcome.report["verdict"]) == (124, "hung")
    assert [node["steps"] for node in outcome.report["nodes"]] == [12, 12]
    assert checks["hang"]["status"] == "failed"
    assert (checks["collective-mismatch"]["status"], checks["collective-mismatch"]["ranks"]) == ("failed", [1])
    assert checks["collective-mismatch"]["place"]["line"] == 13
