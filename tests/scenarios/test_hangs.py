"""Whatever a run hangs in is named: the rank, its line, and what the others wait in. What is only slow is left alone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import ROOT
from tests.scenarios.conftest import Project

pytestmark = pytest.mark.train

ZOO = ROOT / "tests" / "zoo" / "hang"
TWO_BY_TWO = ("--nodes", "2", "--nproc-per-node", "2", "--hang-timeout", "4s")
IN_BACKWARD = "wait for it in DDP's gradient all-reduce in backward"
KINDS = [
    ("asleep", 2, ["sleeps at", "line 16: `time.sleep(0.1)`", f"ranks 0, 1, 3 {IN_BACKWARD}"]),
    ("two_locks", 3, ["waits for a thread or a lock", "`with file_lock:`", "`with metrics_lock:`", IN_BACKWARD]),
    ("native_call", 1, ["holds the interpreter's lock", "`native.sleep(100_000)`", IN_BACKWARD]),
    ("stuck_loader", 0, ["waits for its data loader", "its worker (pid ", "sleeps at", "`time.sleep(100_000)`"]),
    (
        "stopped",
        1,
        ["is stopped (SIGSTOP)", "line 20: `os.kill(os.getpid(), signal.SIGSTOP)`", f"ranks 0, 2, 3 {IN_BACKWARD}"],
    ),
    ("early_stop", 1, ["rank 1 waits in barrier", "ranks 0, 2, 3 wait in DDP's gradient all-reduce in backward"]),
    ("barrier_on_rank_0", 0, ["rank 0 waits in barrier", "line 18", "ranks 1, 2, 3 wait in DDP's"]),
    ("crossed_collectives", 0, ["ranks 0, 2 wait in all_reduce", "ranks 1, 3 wait in all_reduce"]),
]


def hang_of(report: dict[str, Any]) -> dict[str, Any]:
    """What the check of this name said."""
    (check,) = (check for check in report["checks"] if check["id"] == "hang")
    found: dict[str, Any] = check
    return found


@pytest.mark.parametrize(("script", "rank", "words"), KINDS, ids=[kind for kind, _, _ in KINDS])
def test_each_kind_of_hang_is_named(project: Project, script: str, rank: int, words: list[str]) -> None:
    file = ZOO / f"broken_{script}.py"
    outcome = project.run("up", "--engine", "local", *TWO_BY_TWO, "--json", str(file))
    cause, check = outcome.report["cause"], hang_of(outcome.report)

    assert outcome.status == 124
    assert outcome.report["verdict"] == "hung"
    assert (cause["kind"], cause["rank"]) == ("hang", rank)
    assert [word for word in words if word not in cause["message"]] == []
    assert all(f"rank {number} on node-{number // 2}" in cause["traceback"] for number in range(4))
    assert (check["status"], check["detail"], check["ranks"]) == ("failed", cause["message"], [rank])
    assert check["place"]["file"] == str(file)


@pytest.mark.parametrize("script", ["slow_evaluation", "slow_download", "compiles", "slow_samples"])
def test_what_is_only_slow_goes_on(project: Project, script: str) -> None:
    outcome = project.run("up", "--engine", "local", *TWO_BY_TWO, "--json", str(ZOO / f"hard_{script}.py"))

    assert outcome.status == 0
    assert hang_of(outcome.report)["status"] == "passed"
    (folder,) = (project.folder / ".composesim" / "runs").iterdir()
    assert '"hang"' not in (folder / "events" / "composesim.jsonl").read_text()


def test_a_rank_that_only_waits_for_itself_is_told_on_every_engine(project: Project, engine: str) -> None:
    """Told while the run goes on, then the run is stopped."""
    script = project.write("train.py", (ZOO / "broken_asleep.py").read_text())
    outcome = project.run("up", "--engine", engine, *TWO_BY_TWO, script)
    told = [
        line for line in outcome.stderr.splitlines() if line.startswith("hang: rank 2 on node-1 sleeps at train.py")
    ]

    assert outcome.status == 124
    assert len(told) == 1
    assert "in DDP's gradient all-reduce in backward (train.py, line " in told[0]
