"""GPUs are checked before the script starts, limits are set when CUDA is initialized, and MPS is served; without a GPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from compose_sim.node.agent import gpu_proof
from compose_sim.node.rank import gpu_limits
from compose_sim.node.shared.event_log import EventLog
from tests.builders import PATIENCE_S, ROOT
from tests.contract.bench import until

UUID = "GPU-0e5e63e1-0cb4-4b3c-9f3a-000000000000"
MPS = ROOT / "compose_sim" / "node" / "__main__.py"


@pytest.fixture
def events(tmp_path: Path) -> EventLog:
    (tmp_path / "events").mkdir()
    return EventLog(folder=tmp_path, run="demo", node="node-1")


def told(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for file in (folder / "events").iterdir() for line in file.read_text().splitlines()]
    return [line["data"] for line in lines if line["kind"] == kind]


def not_told_to_end(seconds: float) -> bool:
    return False


def test_a_node_without_its_gpu_names_the_planned_one(events: EventLog) -> None:
    problem = gpu_proof.GpuProof({"COMPOSESIM_GPUS": UUID}).finish(events, not_told_to_end)
    (event,) = told(events.folder, "gpus")

    assert problem.startswith(f"node-1 sees no GPU, but {UUID} was planned")
    assert (event["planned"], event["visible"], event["message"]) == ([UUID], [], problem)


@pytest.mark.parametrize(
    ("found", "environment", "problem"),
    [
        ({"uuids": [UUID[4:]], "mps": None}, {}, ""),
        ({"uuids": [UUID[4:]], "mps": True}, {"COMPOSESIM_MPS": "1"}, ""),
        ({"uuids": [UUID[4:]], "mps": None}, {"COMPOSESIM_MPS": "1"}, ""),  # a driver that does not report it
        ({"uuids": [UUID[4:]], "mps": False}, {"COMPOSESIM_MPS": "1"}, "does not use its GPU through MPS"),
        ({"uuids": ["another"], "mps": None}, {}, f"sees another, but {UUID} was planned"),
        ({"uuids": [UUID[4:], "another"], "mps": None}, {}, f"another, but {UUID} was planned"),
    ],
)
def test_what_cuda_shows_is_compared_with_the_plan(
    found: dict[str, Any], environment: dict[str, str], problem: str
) -> None:
    proof = gpu_proof.GpuProof({"COMPOSESIM_GPUS": UUID, **environment})

    said = proof._compare(found, "node-1")

    assert problem in said
    assert bool(said) == bool(problem)


def test_a_node_without_gpus_proves_nothing(events: EventLog) -> None:
    assert gpu_proof.GpuProof({"COMPOSESIM_GPUS": ""}).finish(events, not_told_to_end) == ""
    assert told(events.folder, "gpus") == []


def test_a_node_that_is_stopped_while_it_waits_for_mps_reports_no_problem(events: EventLog, tmp_path: Path) -> None:
    environment = {"COMPOSESIM_GPUS": UUID, "COMPOSESIM_MPS": "1", "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}

    assert gpu_proof.GpuProof(environment).finish(events, lambda seconds: True) == ""


def test_the_share_of_memory_is_set_on_the_ranks_own_gpu_once_cuda_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPOSESIM_GPUS", "a,b")
    monkeypatch.setenv("LOCAL_RANK", "1")
    done: list[Any] = []
    inner = SimpleNamespace(
        _cuda_init=lambda: done.append("begun"), _cuda_setMemoryFraction=lambda *given: done.append(given)
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(_C=inner))
    limits = gpu_limits._initialize(0.25, crowd="")
    next(limits)
    assert done == []

    inner._cuda_init()
    next(limits, None)

    assert done == ["begun", (0.25, 1)]


@pytest.mark.parametrize(
    ("cpus", "ranks", "expected"),
    [
        (16, 8, [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11], [12, 13], [14, 15]]),
        (4, 3, [[0], [1], [2, 3]]),  # no CPU is left over
        (2, 5, [[0], [1], [0], [1], [0]]),
    ],
)
def test_ranks_share_out_the_cpus(cpus: int, ranks: int, expected: list[list[int]]) -> None:
    assert [gpu_limits.cpus_of(list(range(cpus)), place, ranks) for place in range(ranks)] == expected


def test_a_rank_keeps_to_its_cpus_once_cuda_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    before = os.sched_getaffinity(0)
    limits = gpu_limits._initialize(0.0, crowd="2/1000")
    assert os.sched_getaffinity(0) == before

    try:
        next(limits)
        during = os.sched_getaffinity(0)
    finally:
        os.sched_setaffinity(0, before)

    assert during == {sorted(before)[3 % len(before)]}


def _environment(tmp_path: Path, **more: str) -> dict[str, str]:
    control = tmp_path / "nvidia-cuda-mps-control"
    control.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{ROOT / "tests" / "node" / "stub_mps_control.py"}" "$@"\n')
    control.chmod(0o755)
    (tmp_path / "events").mkdir()
    own = {"COMPOSESIM_DIR": str(tmp_path), "COMPOSESIM_RUN": "demo", "COMPOSESIM_NODE": "mps"}
    pipes = {"COMPOSESIM_MPS_CONTROL": str(control), "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / "mps")}
    return {**os.environ, **own, **pipes, **more}


def test_mps_reports_when_it_answers_and_stops_its_daemon(tmp_path: Path) -> None:
    environment = _environment(tmp_path)
    (tmp_path / "mps").mkdir()
    (tmp_path / "mps" / "told-to-quit").touch()  # left by a daemon that was killed
    serve = subprocess.Popen([sys.executable, str(MPS), "mps", "serve"], env=environment)
    ready = tmp_path / "mps" / "composesim-ready"
    until(lambda: ready.exists() or serve.poll() is not None)
    healthy = subprocess.run([sys.executable, str(MPS), "mps", "ask"], env=environment, check=False).returncode
    serve.send_signal(signal.SIGTERM)
    status = serve.wait(timeout=PATIENCE_S)
    left = {path.name for path in (tmp_path / "mps").iterdir()}
    after = subprocess.run([sys.executable, str(MPS), "mps", "ask"], env=environment, check=False).returncode

    assert (healthy, status, after) == (0, 0, 1)
    assert left == {"told-to-quit"}  # it was asked to quit, and its pipes and our file are gone
    assert [event["phase"] for event in told(tmp_path, "mps")] == ["ready"]


def test_an_mps_that_does_not_come_up_says_so(tmp_path: Path) -> None:
    environment = _environment(tmp_path, STUB_FAILS="1")

    done = subprocess.run(
        [sys.executable, str(MPS), "mps", "serve"], env=environment, check=False, capture_output=True, text=True
    )

    assert done.returncode == 1
    assert "ended with status 3 before it answered" in done.stderr
    assert [event["phase"] for event in told(tmp_path, "mps")] == ["failed"]
    client = {
        "COMPOSESIM_GPUS": UUID,
        "COMPOSESIM_MPS": "1",
        "CUDA_MPS_PIPE_DIRECTORY": environment["CUDA_MPS_PIPE_DIRECTORY"],
    }
    problem = gpu_proof.GpuProof(client).finish(EventLog(folder=tmp_path, run="demo", node="node-1"), not_told_to_end)
    assert problem.startswith("MPS does not run: ")
