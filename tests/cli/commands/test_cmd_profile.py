"""`profile` takes the same steps of all ranks of a job that runs on, and Perfetto opens the result without errors."""

from __future__ import annotations

import json
import os
import pickle
import re
import secrets
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cli.conftest import Project
from tests.view.browser import a_tab
from tests.view.perfetto import MISSING, opened, query

pytestmark = pytest.mark.train
STEPS = 3
SCRIPT = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, last = dist.get_rank(), dist.get_world_size() - 1
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
over, steps = torch.zeros(1), 0
while not over:
    given = torch.ones(16)
    if rank > 0:
        dist.recv(given, rank - 1)
    made = model(given)
    if rank < last:
        dist.send(made.detach(), rank + 1)
    ring = [dist.P2POp(dist.isend, given, (rank + 1) % (last + 1)), dist.P2POp(dist.irecv, given * 0, (rank - 1) % (last + 1))]
    for work in dist.batch_isend_irecv(ring):
        work.wait()
    made.sum().backward()
    optimizer.step()
    steps += 1
    if rank == 0 and steps == 5:
        open("begun", "w").close()
    over += rank == 0 and os.path.exists("stop")
    dist.broadcast(over, 0)
dist.destroy_process_group()
"""
_Events = list[dict[str, Any]]


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Project, subprocess.CompletedProcess[str]]]:
    """Return a finished run of two ranks, of which some steps have been profiled, with a fault across them."""
    project, run = Project(tmp_path_factory.mktemp("profiled")), f"profiled-{secrets.token_hex(3)}"
    project.write("train.py", SCRIPT)
    os.mkfifo(project.folder / "begun")
    started = project.run("up", "--engine", "local", "--nodes", "2", "--detach", "--name", run, "train.py")
    assert started.returncode == 0, started.stderr
    try:
        (project.folder / "begun").read_text()
        done = project.run("profile", run, "--steps", str(STEPS), "-o", "profile.json")
        project.write("dump.json", project.run("dump", run, "-o", "flight", "--json").stdout)
        project.write("stop", "")
        assert project.run("wait", "--run", run).returncode == 0
        assert project.run("trace", run, "-o", "trace.json").returncode == 0
        yield project, done
    finally:
        project.run("down", "--run", run)


def events_of(project: Project, name: str) -> _Events:
    events: _Events = json.loads((project.folder / name).read_text())["traceEvents"]
    return events


def test_all_ranks_profile_the_same_steps_and_the_job_runs_on(
    profiled: tuple[Project, subprocess.CompletedProcess[str]],
) -> None:
    project, done = profiled
    events = events_of(project, "profile.json")
    names = {each["pid"]: each["args"]["name"] for each in events if each["name"] == "process_name"}

    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        own = [each for each in events if names.get(each["pid"], "").startswith(f"node-{rank}: rank {rank}")]
        theirs = [each for each in own if each["name"].startswith("Optimizer.step")]
        ours = [each for each in events if names.get(each["pid"]) == f"node-{rank}" and each.get("cat") == "optimizer"]
        assert len(theirs) == STEPS
        assert any(each["name"] == "aten::linear" for each in own)
        # Both clocks are one: each step that torch timed contains the one that composesim timed.
        found = [
            [each["args"]["step"] for each in ours if step["ts"] <= each["ts"] <= step["ts"] + step["dur"]]
            for step in theirs
        ]
        first = found[0][0]
        assert found == [[first], [first + 1], [first + 2]]


def test_a_dump_shows_where_each_rank_is_and_gathers_the_recorders(
    profiled: tuple[Project, subprocess.CompletedProcess[str]],
) -> None:
    project, _ = profiled
    dump = json.loads((project.folder / "dump.json").read_text())

    assert [(each["rank"], each["node"], each["locked_in_c"]) for each in dump["ranks"]] == [
        (0, "node-0", False),
        (1, "node-1", False),
    ]
    assert all(any(frame[0].endswith("train.py") for frame in each["frames"]) for each in dump["ranks"])
    assert (dump["left_out"], sorted(file.name for file in (project.folder / "flight").iterdir())) == (
        {},
        ["rank_0", "rank_1"],
    )
    for file in (
        project.folder / "flight"
    ).iterdir():  # tests/node/rank/test_flight_recorder.py has torch's tool read such files
        assert {"all_reduce", "broadcast", "send", "recv"} & _operations(pickle.loads(file.read_bytes()))


def _operations(dump: Any) -> set[str]:
    return {re.split(r"[: ]", each["profiling_name"])[1] for each in dump["entries"]}


def test_a_run_that_is_over_cannot_be_profiled(profiled: tuple[Project, subprocess.CompletedProcess[str]]) -> None:
    project, _ = profiled
    done = project.run("profile")

    assert (done.returncode, "is over" in done.stderr) == (2, True)


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_perfetto_opens_both_traces_without_errors(
    profiled: tuple[Project, subprocess.CompletedProcess[str]],
) -> None:
    project, _ = profiled
    with a_tab() as tab:
        for name in ("trace.json", "profile.json"):
            with opened(tab, (project.folder / name).read_bytes()):
                bad = "SELECT name, cast(value AS text) AS value FROM stats WHERE severity != 'info' AND value > 0"
                assert query(tab, bad, "name", "value") == []
                written = events_of(project, name)
                slices = sum(each["ph"] in "Xb" for each in written) + sum(each["ph"] == "i" for each in written)
                assert query(tab, "SELECT cast(count(*) AS text) AS n FROM slice", "n") == [[str(slices)]]
                flows = sum(each["ph"] == "s" for each in written)
                assert query(tab, "SELECT cast(count(*) AS text) AS n FROM flow", "n") == [[str(flows)]]
                assert flows > 10
                nodes = "SELECT name FROM process WHERE name GLOB 'node-?' ORDER BY pid"
                assert query(tab, nodes, "name") == [["node-0"], ["node-1"]]
