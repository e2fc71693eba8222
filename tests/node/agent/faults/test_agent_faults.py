"""Test the commands of a node's agent on real processes: how they break something, are undone, and fail."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from compose_sim.node.agent.faults import checkpoints
from compose_sim.node.agent.faults.command_runner import CommandRunner
from compose_sim.node.shared.event_log import EventLog
from tests.builders import PATIENCE_S

STOP = {"rank": 2, "signal": "STOP"}
# A rank that the agent can break. It prints in each iteration whether it can still open a file.
RANK = """
import os, sys, time
from pathlib import Path
from compose_sim.node.rank import fault_handler
from compose_sim.node.shared.event_log import EventLog

# An observer, which swallows all exceptions. The rank spends nearly all its time in it.
OBSERVER = '''
import time
def observe():
    try:
        time.sleep(0.005)
        time.sleep(0.005)
    except Exception:
        print("swallowed", flush=True)
'''
exec(compile(OBSERVER, fault_handler.__file__.replace("fault_handler", "observer"), "exec"))
fault_handler.install(EventLog(Path(sys.argv[1]), "test", "node-0"))
while True:
    observe()
    try:
        os.close(os.open("/dev/null", os.O_RDONLY))
        print("turn", flush=True)
    except OSError as error:
        print(error.strerror, flush=True)
"""


@dataclass
class Rank:
    """A rank of the node under test."""

    process: subprocess.Popen[str]
    rank: int = 2

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def turns_until(self, word: str) -> None:
        """Read the output up to this line."""
        assert self.process.stdout is not None
        assert word in iter(lambda: self.process.stdout.readline().strip(), "")  # type: ignore[union-attr]

    def is_silent(self) -> bool:
        """Return whether the rank prints nothing for the time of twenty iterations."""
        assert self.process.stdout is not None
        output = self.process.stdout.fileno()
        os.set_blocking(output, False)
        try:
            while True:
                os.read(output, 1 << 16)
        except BlockingIOError:
            return not select.select([output], [], [], 0.2)[0]
        finally:
            os.set_blocking(output, True)


class Bench:
    """Write commands as composesim does, and execute them as the agent does."""

    def __init__(self, folder: Path) -> None:
        self.events = EventLog(folder, "test", "node-0")
        for name in ("events", "observations", "debug", "control/node-0"):
            (folder / name).mkdir(parents=True)
        self.folder, self.runner, self.ranks = folder, CommandRunner(self.events), list[Rank]()

    def give(self, name: str, *, id: str = "fault-1", on: bool = True, **values: Any) -> dict[str, Any]:
        """Write or change a command, and poll until the event arrives; return the event's data."""
        self.write(f"{id}.json", json.dumps({"id": id, "name": name, "values": values, "on": on}))
        return self.answer()

    def undo(self, name: str, *, id: str = "fault-1", **values: Any) -> dict[str, Any]:
        return self.give(name, id=id, on=False, **values)

    def write(self, name: str, text: str) -> None:
        draft = self.folder / "control" / "node-0" / ".draft"
        draft.write_text(text)
        draft.replace(draft.with_name(name))

    def answer(self) -> dict[str, Any]:
        """Return the data of the next `command` event."""
        known, deadline = len(self.outcomes()), time.monotonic() + PATIENCE_S
        while len(self.outcomes()) == known:
            assert time.monotonic() < deadline
            self.runner.poll(self.ranks)
            time.sleep(0.005)
        return self.outcomes()[-1]

    def outcomes(self) -> list[dict[str, Any]]:
        lines = self.events.path.read_text().splitlines() if self.events.path.exists() else []
        return [event["data"] for event in map(json.loads, lines) if event["kind"] == "command"]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """A node without ranks."""
    return Bench(tmp_path)


@pytest.fixture
def rank(bench: Bench) -> Iterator[Rank]:
    """Rank 2 of the node, in the middle of its script."""
    command = [sys.executable, "-u", "-c", RANK, str(bench.folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    rank = Rank(process)
    rank.turns_until("turn")
    bench.ranks.append(rank)
    yield rank
    process.kill()
    process.communicate()


def test_a_rank_raises_in_its_own_code(bench: Bench, rank: Rank) -> None:
    assert bench.give("rank_fault", rank=2, action="raise") == {"id": "fault-1", "phase": "done", "why": ""}
    output, errors = rank.process.communicate(timeout=PATIENCE_S)

    assert rank.process.returncode == 1
    assert errors.splitlines()[-1].endswith("InjectedFault: raised on purpose (fault-1)")
    assert 'File "<string>", line ' in errors
    assert "swallowed" not in output


def test_a_rank_exits_with_a_code(bench: Bench, rank: Rank) -> None:
    bench.give("rank_fault", rank=2, action="exit", code=7)

    assert rank.process.wait(PATIENCE_S) == 7


@pytest.mark.parametrize("action", ["hang", "lock-gil"])
def test_a_rank_hangs_until_it_is_healed(bench: Bench, rank: Rank, action: str) -> None:
    assert bench.give("rank_fault", rank=2, action=action)["phase"] == "done"
    assert rank.is_silent()

    assert bench.undo("rank_fault", rank=2, action=action) == {"id": "fault-1", "phase": "undone", "why": ""}
    rank.turns_until("turn")


@pytest.mark.parametrize("name", ["SEGV", "ABRT", "KILL", "TERM"])
def test_a_rank_dies_of_a_real_signal(bench: Bench, rank: Rank, name: str) -> None:
    assert bench.give("rank_signal", rank=2, signal=name)["phase"] == "done"

    assert rank.process.wait(PATIENCE_S) == -signal.Signals[f"SIG{name}"]


def test_a_stopped_rank_continues(bench: Bench, rank: Rank) -> None:
    bench.give("rank_signal", rank=2, signal="STOP")
    os.waitid(os.P_PID, rank.pid, os.WSTOPPED | os.WNOWAIT)
    assert _state_of(rank) == "T"

    assert bench.undo("rank_signal", rank=2, signal="STOP")["phase"] == "undone"
    os.waitid(os.P_PID, rank.pid, os.WCONTINUED | os.WNOWAIT)
    rank.turns_until("turn")


def test_a_fault_between_two_rounds_waits_until_the_rank_starts_again(bench: Bench, rank: Rank) -> None:
    bench.ranks.clear()
    bench.write("fault-1.json", json.dumps({"id": "fault-1", "name": "rank_signal", "values": STOP, "on": True}))
    for _ in range(3):
        bench.runner.poll(bench.ranks)
    assert bench.outcomes() == []

    bench.ranks.append(rank)
    assert bench.answer() == {"id": "fault-1", "phase": "done", "why": ""}
    assert _state_of(rank) == "T"


def test_a_rank_cannot_open_files_until_it_is_healed(bench: Bench, rank: Rank) -> None:
    bench.give("rank_files_full", rank=2)
    rank.turns_until("Too many open files")

    bench.undo("rank_files_full", rank=2)
    rank.turns_until("turn")


@pytest.mark.parametrize("how", ["truncate", "flip"])
def test_the_newest_checkpoint_is_corrupted_and_restored(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setenv("COMPOSESIM_SHARED", str(tmp_path / "shared"))
    old, new, unfinished = (tmp_path / "shared" / name for name in ("deep/old.pt", "deep/new.pt", "new.pt.tmp"))
    old.parent.mkdir(parents=True)
    for age, file in enumerate((unfinished, new, old)):
        file.write_bytes(os.urandom(50_000))
        os.utime(file, (1e9 - age, 1e9 - age))
    whole = {file: file.read_bytes() for file in (old, new, unfinished)}

    assert bench.give("corrupt_checkpoint", how=how)["phase"] == "done"
    assert [file for file in whole if file.read_bytes() != whole[file]] == [new]
    assert new.stat().st_size == (25_000 if how == "truncate" else 50_000)

    bench.undo("corrupt_checkpoint", how=how)
    assert {file: file.read_bytes() for file in whole} == whole
    assert list((tmp_path / "debug").iterdir()) == []


def test_an_agent_that_leaves_restores_the_checkpoint(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPOSESIM_SHARED", str(tmp_path / "shared"))
    checkpoint = tmp_path / "shared" / "checkpoint.pt"
    checkpoint.parent.mkdir()
    checkpoint.write_bytes(b"whole" * 100)
    bench.give("corrupt_checkpoint", how="truncate")
    assert checkpoint.read_bytes() == b"whole" * 50
    bench.runner.close()

    assert checkpoint.read_bytes() == b"whole" * 100
    assert bench.outcomes()[-1] == {"id": "fault-1", "phase": "undone", "why": ""}


def test_an_agent_restores_what_an_earlier_agent_corrupted(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node was killed in between, and the fault was healed while no agent ran."""
    monkeypatch.setenv("COMPOSESIM_SHARED", str(tmp_path / "shared"))
    checkpoint = tmp_path / "shared" / "checkpoint.pt"
    checkpoint.parent.mkdir()
    checkpoint.write_bytes(b"whole" * 100)
    bench.give("corrupt_checkpoint", how="truncate")

    bench.write("fault-1.json", json.dumps({"id": "fault-1", "name": "corrupt_checkpoint", "values": {}, "on": False}))
    bench.runner = CommandRunner(bench.events)

    assert bench.answer() == {"id": "fault-1", "phase": "undone", "why": ""}
    assert checkpoint.read_bytes() == b"whole" * 100


def test_a_checkpoint_that_was_written_again_is_not_restored(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPOSESIM_SHARED", str(tmp_path / "shared"))
    checkpoint = tmp_path / "shared" / "checkpoint.pt"
    checkpoint.parent.mkdir()
    checkpoint.write_bytes(b"first" * 100)
    bench.give("corrupt_checkpoint", how="flip")
    assert checkpoint.read_bytes() != b"first" * 100
    checkpoint.unlink()
    checkpoint.write_bytes(b"later" * 100)

    bench.undo("corrupt_checkpoint", how="flip")
    assert checkpoint.read_bytes() == b"later" * 100


@pytest.mark.parametrize("how", ["truncate", "flip"])
def test_the_holes_of_a_sparse_checkpoint_take_no_space(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setenv("COMPOSESIM_SHARED", str(tmp_path / "shared"))
    checkpoint = tmp_path / "shared" / "checkpoint.pt"
    checkpoint.parent.mkdir()
    with checkpoint.open("wb") as file:
        file.truncate(1 << 40)
        os.pwrite(file.fileno(), b"data", 3 << 38)

    assert bench.give("corrupt_checkpoint", how=how)["phase"] == "done"
    assert sum(file.stat().st_blocks * 512 for file in (tmp_path / "debug").iterdir()) < 1 << 20

    bench.undo("corrupt_checkpoint", how=how)
    assert checkpoint.stat().st_size == 1 << 40
    assert checkpoint.stat().st_blocks * 512 < 1 << 20
    with checkpoint.open("rb") as file:
        assert os.pread(file.fileno(), 6, (3 << 38) - 1) == b"\0data\0"


def test_a_checkpoint_that_is_cut_off_while_it_is_copied_ends_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "checkpoint").write_bytes(b"whole" * 100)
    monkeypatch.setattr(os, "pread", lambda *_: b"")  # what it returns beyond the end

    with (tmp_path / "checkpoint").open("rb") as source, (tmp_path / "kept").open("wb") as target:
        checkpoints._copy(source.fileno(), target.fileno(), 0, 500)
    assert (tmp_path / "kept").stat().st_size == 0


def test_a_checkpoint_that_became_a_link_is_not_written(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPOSESIM_SHARED", str(tmp_path / "shared"))
    checkpoint, other = tmp_path / "shared" / "checkpoint.pt", tmp_path / "other"
    checkpoint.parent.mkdir()
    checkpoint.write_bytes(b"whole" * 100)
    bench.give("corrupt_checkpoint", how="truncate")
    os.link(checkpoint, other)  # so that it has the same inode, size and time
    checkpoint.unlink()
    checkpoint.symlink_to(other)

    bench.write("fault-1.json", json.dumps({"id": "fault-1", "name": "corrupt_checkpoint", "values": {}, "on": False}))
    assert bench.answer()["phase"] == "failed"
    assert other.read_bytes() == b"whole" * 50


def test_a_script_cannot_keep_the_agent_busy_with_files(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPOSESIM_SHARED", str(tmp_path / "shared"))
    monkeypatch.setattr(checkpoints, "_MAX_FILES", 3)
    (tmp_path / "shared").mkdir()
    for name in "abcd":
        (tmp_path / "shared" / name).write_bytes(b"whole")

    outcome = bench.give("corrupt_checkpoint", how="flip")
    assert (outcome["phase"], "more than 3 files" in outcome["why"]) == ("failed", True)


@pytest.mark.parametrize("text", ['{"id":' + "[" * 100_000, "pipe", "link"])
def test_a_command_that_is_no_file_of_json_is_reported(bench: Bench, tmp_path: Path, text: str) -> None:
    bench.write("fault-0.json", "{}")
    assert bench.answer()["phase"] == "failed"
    path = tmp_path / "control" / "node-0" / "fault-1.json"
    if text == "pipe":
        os.mkfifo(path)
    elif text == "link":
        path.symlink_to("/dev/zero")
    else:
        bench.write("fault-1.json", text)
    outcome = bench.answer()
    assert (outcome["id"], outcome["phase"]) == ("fault-1", "failed")


@pytest.mark.parametrize(
    ("name", "values", "why"),
    [
        ("rank_signal", {"rank": 5, "signal": "KILL"}, "rank 5 is not running on node-0"),
        ("rank_signal", {"rank": 2, "signal": "NONE"}, "KeyError: 'SIGNONE'"),
        ("rank_fault", {"rank": 2}, "'None' is not an action of a rank"),
        ("no_such_command", {}, "unknown command 'no_such_command'"),
        ("../agent", {}, "unknown command '../agent'"),
        ("balloon", {}, "unknown command 'balloon'"),
        ("memory", {}, "the node has no memory limit, so this would exhaust the memory of the host"),
        ("disk_full", {}, "the node has no --scratch disk, so this would fill the disk of the host"),
        ("processes_full", {}, "the node has no process limit, so this would exhaust the processes of the host"),
    ],
)
def test_a_command_that_fails_says_why_and_leaves_the_rank_alone(
    bench: Bench, rank: Rank, name: str, values: dict[str, Any], why: str
) -> None:
    assert bench.give(name, **values) == {"id": "fault-1", "phase": "failed", "why": why}
    assert bench.undo(name, **values)["phase"] in ("undone", "failed")
    rank.turns_until("turn")


@pytest.mark.parametrize(
    "text", ["", '{"id": "fault-1", "na', "[]", '{"id": "../../x", "name": "memory", "values": {}, "on": true}']
)
def test_an_incomplete_command_is_reported_and_the_complete_one_is_executed(
    bench: Bench, rank: Rank, text: str
) -> None:
    bench.write("fault-1.json", text)
    outcome = bench.answer()

    assert (outcome["id"], outcome["phase"]) == ("fault-1", "failed")
    assert outcome["why"].startswith("'fault-1.json' is not a command: ")
    assert bench.give("rank_signal", rank=2, signal="STOP")["phase"] == "done"


def test_an_agent_that_starts_again_executes_no_command_twice(bench: Bench, rank: Rank) -> None:
    """It executes the commands that came in between."""
    bench.give("rank_signal", rank=2, signal="STOP")
    os.kill(rank.pid, signal.SIGCONT)
    bench.runner = CommandRunner(bench.events)

    assert bench.give("rank_signal", id="fault-2", rank=7, signal="KILL")["id"] == "fault-2"
    rank.turns_until("turn")
    assert [each["id"] for each in bench.outcomes()] == ["fault-1", "fault-2"]


def test_a_fault_for_a_rank_that_does_not_return_to_python_is_withdrawn(
    bench: Bench, rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compose_sim.node.agent.faults.ranks.TIMEOUT_SECONDS", 0.3)
    bench.give("rank_signal", id="fault-0", rank=2, signal="STOP")
    outcome = bench.give("rank_fault", rank=2, action="raise")
    assert (outcome["phase"], outcome["why"]) == ("failed", "rank 2 is in a call that does not return to Python")

    os.kill(rank.pid, signal.SIGCONT)
    rank.turns_until("turn")


def _state_of(rank: Rank) -> str:
    return Path(f"/proc/{rank.pid}/stat").read_text().rpartition(")")[2].split()[0]
