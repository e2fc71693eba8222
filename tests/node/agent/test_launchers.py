"""A training script sees the same under every launcher as under torchrun itself."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.builders import PATIENCE_S, ROOT
from tests.node.harness import NODE_CODE, Cluster

pytestmark = pytest.mark.train

SCRIPTS = ROOT / "tests" / "node" / "scripts"
MakeCluster = Callable[..., Cluster]

# How our launchers differ from torchrun in what a script can read, and why.
DIFFERS = {
    "MASTER_PORT": "another port in every run",
    "MASTER_ADDR": "bare torchrun on one node says localhost or the host's name, we the master's",
    "TORCHELASTIC_RUN_ID": "our run's name",
    "TORCHELASTIC_ERROR_FILE": "a file in a temporary folder, read by torchrun when it reports a failure; we have events",
    "TORCH_FR_BUFFER_SIZE": "ours: torch's flight recorder records collectives, and we read it when a run hangs",
    "TORCHINDUCTOR_CACHE_DIR": "set by torch's compiler, which we import on first use",
    "TORCHELASTIC_SIGNALS_TO_HANDLE": "set by torchrun of torch 2.9 for its own agent",
    "NODE_RANK": "ours: Lightning and others read it beside GROUP_RANK",
}
BARE_PROCESS = {
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
}


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Return what rank 1 of two on one node printed, by launcher; `bare` is torchrun without composesim."""
    folder = tmp_path_factory.mktemp("reports")
    said: dict[str, dict[str, Any]] = {}
    environment: dict[str, str] = {}
    for launcher in ("warm", "torchrun", "env"):
        run = Cluster(folder / launcher, ["report.py", "--lr", "0.1", "a b"], launcher=launcher, nproc=2)
        run.cwd = SCRIPTS
        environment = run.environment
        assert set(run.start(1).exit_codes().values()) == {0}, (run.folder / "logs" / "node-0.stderr").read_text()
        said[launcher] = _said(run.log(1))
        said[launcher]["events"] = run.events("node-0")
        said[launcher]["seeds"] = [_said(run.log(rank))["seed"] for rank in range(2)]
    bare = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "report.py", "--lr", "0.1", "a b"],
        cwd=SCRIPTS,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    said["bare"] = next(it for it in _all_said(bare.stdout) if it["environment"]["RANK"] == "1")
    return said


def _said(text: str) -> dict[str, Any]:
    return _all_said(text)[0]


def _all_said(text: str) -> list[dict[str, Any]]:
    """Return what ranks have printed; gloo of torch 2.9 prints lines of its own."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


@pytest.mark.parametrize("launcher", ["warm", "torchrun", "env"])
def test_a_script_finds_itself_as_under_torchrun(reports: dict[str, dict[str, Any]], launcher: str) -> None:
    seen = ("argv", "name", "file", "path", "cwd")
    assert {name: reports[launcher][name] for name in seen} == {name: reports["bare"][name] for name in seen}


@pytest.mark.parametrize("launcher", ["warm", "torchrun", "env"])
def test_ranks_without_a_seed_draw_different_numbers(reports: dict[str, dict[str, Any]], launcher: str) -> None:
    """As processes that import torch themselves; a shared seed would hide an unseeded shuffle."""
    assert len(set(reports[launcher]["seeds"])) == 2


@pytest.mark.parametrize("launcher", ["warm", "torchrun"])
def test_the_environment_is_torchruns(reports: dict[str, dict[str, Any]], launcher: str) -> None:
    ours, bare = reports[launcher]["environment"], reports["bare"]["environment"]
    different = {name for name in {*ours, *bare} if ours.get(name) != bare.get(name)}
    assert different <= set(DIFFERS), {name: (ours.get(name), bare.get(name)) for name in different - set(DIFFERS)}


def test_a_bare_process_gets_only_what_env_rendezvous_reads(reports: dict[str, dict[str, Any]]) -> None:
    ours, bare = reports["env"]["environment"], reports["bare"]["environment"]
    assert set(ours) >= BARE_PROCESS
    assert {name for name in ours if name.startswith("TORCHELASTIC_")} == set()
    assert {name: ours[name] for name in ours if name not in DIFFERS} == {
        name: bare[name] for name in ours if name not in DIFFERS
    }


@pytest.mark.parametrize("launcher", ["warm", "torchrun", "env"])
def test_every_launcher_emits_the_same_events(reports: dict[str, dict[str, Any]], launcher: str) -> None:
    events = [event for event in reports[launcher]["events"] if event["rank"] == 1]
    # The number of these depends on the time
    told = [event["kind"] for event in events if event["kind"] not in ("usage", "waited")]
    assert told == ["rank-started", "init", "init", "step", "step", "script-ended", "rank-exited"]
    steps = [
        event["data"]["step"] for event in reports[launcher]["events"] if event["kind"] == "step" and event["rank"] == 1
    ]
    assert steps == [1, 3]
    (environment,) = [event for event in reports[launcher]["events"] if event["kind"] == "environment"]
    assert environment["data"]["torch"]


@pytest.mark.parametrize("launcher", ["warm", "torchrun"])
def test_a_failing_rank_is_the_nodes_exit_code_and_the_others_are_stopped(tmp_path: Path, launcher: str) -> None:
    run = Cluster(tmp_path / "run", [str(SCRIPTS / "fails_while_others_wait.py")], launcher=launcher)
    codes = run.start(2).exit_codes()
    run.close()
    assert codes == {"master": 1, "node-0": 143, "node-1": 1}
    (exception,) = run.events("node-1", "exception")
    assert exception["data"]["message"] == "rank 1 fails"
    # Once there is a process group, torch prints exceptions itself, and starts each line with the rank.
    assert exception["data"]["traceback"] in run.log(1).replace("[rank1]: ", "")
    (stopped,) = run.events("node-0", "rank-exited")
    assert stopped["data"]["stopped"]


ENDS = """
import atexit, ctypes, sys
import torch

class Last:
    def __del__(self):
        print("object deleted")

last, file = Last(), open("kept.txt", "w")
file.write("flushed")
ctypes.CDLL(None).printf(b"printed by C\\n")
atexit.register(print, "handler called")
sys.exit(7)
"""


@pytest.mark.parametrize("launcher", ["warm", "torchrun"])
def test_the_end_of_a_script_loses_nothing(tmp_path: Path, launcher: str) -> None:
    """A forked rank leaves out the destructors of torch's libraries, and nothing that belongs to the script."""
    (tmp_path / "ends.py").write_text(ENDS)
    run = Cluster(tmp_path / "run", [str(tmp_path / "ends.py")], launcher=launcher)
    codes = run.start(1).exit_codes()
    run.close()
    assert codes["node-0"] == 7
    assert (run.folder / "kept.txt").read_text() == "flushed"
    ends = ["handler called", "object deleted", "printed by C"]
    assert sorted(line for line in run.log(0).splitlines() if line in ends) == ends


@pytest.mark.parametrize(("launcher", "nodes"), [("warm", 3), ("torchrun", 2)])
def test_training_goes_on_after_a_node_was_killed_and_started_again(tmp_path: Path, launcher: str, nodes: int) -> None:
    run = Cluster(tmp_path / "run", [str(SCRIPTS / "trains_until_told.py")], launcher=launcher)
    run.start(nodes, "--max-restarts", "1")
    for number in range(nodes):
        run.wait_for_event(f"node-{number}", "step")
    run.processes["node-0"].kill()
    run.wait_for_event("master", "node-lost")
    run.start_node(0)
    run.wait_for(lambda: [event for event in run.events("node-1", "step") if event["generation"] == 1])
    (run.folder / "shared" / "enough").touch()
    codes = run.exit_codes()
    run.close()
    assert set(codes.values()) == {0}, (run.folder / "logs" / "node-1.stderr").read_text()


def test_a_starter_whose_agent_has_ended_exits_silently() -> None:
    """A run may end before a node's starter is ready; this must not leave a traceback in the node's log."""
    agents, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    agents.close()
    with ours:
        words = (str(os.getpid()), str(ours.fileno()), "command", "--", "true")
        done = subprocess.run(
            [sys.executable, NODE_CODE / "__main__.py", "fork-server", *words],
            pass_fds=[ours.fileno()],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
