"""Nodes leave a run and come back, on each engine: node 0 is killed, the others continue, and all train together again."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.scenarios.conftest import Project, eventually

pytestmark = pytest.mark.train

PATIENCE_S = 180.0  # importing torch alone takes a minute on a shared machine
# Counts steps across rounds, writes a checkpoint at every fifth, and ends when a file exists.
SCRIPT = """
import json, os, time
from pathlib import Path
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
shared = Path(os.environ["COMPOSESIM_SHARED"])
checkpoint, weight = shared / "checkpoint.pt", torch.nn.Parameter(torch.zeros(4))
optimizer, step = torch.optim.SGD([weight], lr=0.1), 0
if int(os.environ["TORCHELASTIC_RESTART_COUNT"]) and checkpoint.exists():
    step = torch.load(checkpoint)
while True:
    end = torch.tensor(float((shared / "stop").exists()))
    dist.all_reduce(end)
    if end:
        break
    weight.grad = torch.ones(4)
    dist.all_reduce(weight.grad)
    optimizer.step()
    step += 1
    if dist.get_rank() == 0:
        print(json.dumps({"step": step, "world_size": dist.get_world_size()}), flush=True)
        if step % 5 == 0:
            torch.save(step, shared / "new")
            (shared / "new").rename(checkpoint)
    time.sleep(0.02)
dist.destroy_process_group()
"""


def events(project: Project, run: str, kind: str) -> list[dict[str, Any]]:
    """Return all events of a kind so far."""
    files = (*project.written(run, "journal/*.jsonl"), *project.written(run, "events/*.jsonl"))
    lines = (line for file in files for line in file.read_text().splitlines(keepends=True) if line.endswith("\n"))
    return [event for event in map(json.loads, lines) if event["kind"] == kind]


def is_at(project: Project, run: str, step: int) -> bool:
    """Return whether the first round has made this many steps."""
    return any(event["data"]["step"] >= step for event in events(project, run, "step"))


def trains(project: Project, run: str, world_size: int, rounds: int) -> bool:
    """Return whether the n-th round or a later one has this size and has made a step."""
    began = [event for event in events(project, run, "round") if event["data"]["world_size"] == world_size]
    stepped = {event["generation"] for event in events(project, run, "step")}
    return any(event["generation"] in stepped and event["generation"] >= rounds - 1 for event in began)


@contextmanager
def under_way(project: Project, *argv: str) -> Iterator[subprocess.Popen[str]]:
    """Start a run, which is stopped if the test fails. With --json, nothing is printed before the report."""
    up = project.start("up", "--json", *argv)
    try:
        yield up
    finally:
        if up.poll() is None:
            up.terminate()
            up.communicate(timeout=PATIENCE_S)


def test_node_0_is_killed_and_comes_back(project: Project, engine: str) -> None:
    project.write("train.py", SCRIPT)
    run = project.named("elastic")
    with under_way(project, "--engine", engine, "--elastic", "2:3", "--name", run, "train.py") as up:
        eventually(lambda: is_at(project, run, 12), within=PATIENCE_S, what="three nodes train")
        assert project.run("fault", "kill", "node-0", "--run", run).status == 0
        eventually(lambda: bool(events(project, run, "recovered")), within=PATIENCE_S, what="two nodes go on")
        shown = json.loads(project.run("ps", "--json").stdout)
        states = {node["node"]: node["state"] for each in shown["runs"] if each["run"] == run for node in each["nodes"]}
        assert (states["node-0"], states["node-1"]) == ("killed", "running")
        assert project.run("heal", "--run", run).status == 0
        eventually(lambda: trains(project, run, 3, 3), within=PATIENCE_S, what="all three train again")
        assert project.run("scale", "2", "--run", run).status == 0
        eventually(lambda: trains(project, run, 2, 4), within=PATIENCE_S, what="two train after one was sent away")
        (project.folder / ".composesim" / "runs" / run / "shared" / "stop").touch()
        printed, told = up.communicate(timeout=PATIENCE_S)
    report = json.loads(printed)

    assert (up.returncode, report["verdict"]) == (0, "passed"), told
    assert [each["world_size"] for each in report["rounds"]] == [3, 2, 3, 2]
    [fault], [recovery] = report["faults"], report["recoveries"]
    assert (fault["kind"], fault["nodes"], recovery["fault"]) == ("kill", ["node-0"], fault["id"])
    assert recovery["nodes"] == ["node-1", "node-2"]
    assert fault["recovered_s"] == recovery["seconds"] > 0
    assert fault["back_s"] > 0
    assert 0 <= fault["steps_lost"] <= 5
    assert report["restarts"] == 0
    assert [result["id"] for result in report["checks"] if result["status"] in ("failed", "warned")] == []


def test_without_elastic_an_injected_death_fails_the_run(project: Project) -> None:
    project.write("train.py", SCRIPT)
    run = project.named("rigid")
    with under_way(project, "--engine", "local", "--nodes", "2", "--name", run, "train.py") as up:
        eventually(lambda: is_at(project, run, 2), within=PATIENCE_S, what="two nodes train")
        project.run("fault", "kill", "node-1", "--run", run)
        printed, told = up.communicate(timeout=PATIENCE_S)
    report = json.loads(printed)

    assert up.returncode == 1, told
    assert report["cause"]["message"] == f"node-1 was killed (SIGKILL) by {report['faults'][0]['id']}"
