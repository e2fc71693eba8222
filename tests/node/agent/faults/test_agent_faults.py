"""What a node is told to do from inside: each order bites a real process, is undone, and nothing wrong with one ends the agent."""

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

from compose_sim.node.agent.faults import Orders
from compose_sim.node.shared.event_log import EventLog

PATIENCE_SECONDS = 60.0
# A rank that can be told to fail, and says at each turn whether it can still open a file.
RANK = """
import os, sys, time
from pathlib import Path
from compose_sim.node.rank import fault_handler
from compose_sim.node.shared.event_log import EventLog

# An observer, which survives whatever goes wrong in it, and in which the rank is nearly always.
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
    """What an agent knows of a rank."""

    process: subprocess.Popen[str]
    rank: int = 2

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def turns_until(self, word: str) -> None:
        """Read what it prints up to this line."""
        assert self.process.stdout is not None
        assert word in iter(lambda: self.process.stdout.readline().strip(), "")  # type: ignore[union-attr]

    def is_silent(self) -> bool:
        """Whether it prints nothing more, for as long as it would take for twenty turns."""
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
    """A node's orders, given and carried out as composesim and the agent do."""

    def __init__(self, folder: Path) -> None:
        self.events = EventLog(folder, "test", "node-0")
        for name in ("events", "observations", "debug", "orders/node-0"):
            (folder / name).mkdir(parents=True)
        self.folder, self.orders, self.ranks = folder, Orders(self.events), list[Rank]()

    def give(self, name: str, *, id: str = "fault-1", on: bool = True, **values: Any) -> dict[str, Any]:
        """Write an order, or change it, and look until something has become of it: the data of that event."""
        self.write(f"{id}.json", json.dumps({"id": id, "name": name, "values": values, "on": on}))
        return self.answer()

    def undo(self, name: str, *, id: str = "fault-1", **values: Any) -> dict[str, Any]:
        return self.give(name, id=id, on=False, **values)

    def write(self, name: str, text: str) -> None:
        draft = self.folder / "orders" / "node-0" / ".draft"
        draft.write_text(text)
        draft.replace(draft.with_name(name))

    def answer(self) -> dict[str, Any]:
        """The next event of an order."""
        known, deadline = len(self.told()), time.monotonic() + PATIENCE_SECONDS
        while len(self.told()) == known:
            assert time.monotonic() < deadline
            self.orders.look(self.ranks)
            time.sleep(0.005)
        return self.told()[-1]

    def told(self) -> list[dict[str, Any]]:
        lines = self.events.path.read_text().splitlines() if self.events.path.exists() else []
        return [event["data"] for event in map(json.loads, lines) if event["kind"] == "order"]


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
    assert bench.give("rank_fault", rank=2, act="raise") == {"id": "fault-1", "phase": "done", "why": ""}
    output, errors = rank.process.communicate(timeout=PATIENCE_SECONDS)

    assert rank.process.returncode == 1
    assert errors.splitlines()[-1].endswith("InjectedFault: raised on purpose (fault-1)")
    assert 'File "<string>", line ' in errors
    assert "swallowed" not in output


def test_a_rank_exits_with_the_code_it_is_told(bench: Bench, rank: Rank) -> None:
    bench.give("rank_fault", rank=2, act="exit", code=7)

    assert rank.process.wait(PATIENCE_SECONDS) == 7


@pytest.mark.parametrize("act", ["hang", "lock-gil"])
def test_a_rank_hangs_until_it_is_healed(bench: Bench, rank: Rank, act: str) -> None:
    assert bench.give("rank_fault", rank=2, act=act)["phase"] == "done"
    assert rank.is_silent()

    assert bench.undo("rank_fault", rank=2, act=act) == {"id": "fault-1", "phase": "undone", "why": ""}
    rank.turns_until("turn")


@pytest.mark.parametrize("name", ["SEGV", "ABRT", "KILL", "TERM"])
def test_a_rank_dies_of_a_real_signal(bench: Bench, rank: Rank, name: str) -> None:
    assert bench.give("rank_signal", rank=2, signal=name)["phase"] == "done"

    assert rank.process.wait(PATIENCE_SECONDS) == -signal.Signals[f"SIG{name}"]


def test_a_stopped_rank_goes_on(bench: Bench, rank: Rank) -> None:
    bench.give("rank_signal", rank=2, signal="STOP")
    os.waitid(os.P_PID, rank.pid, os.WSTOPPED | os.WNOWAIT)
    assert _state_of(rank) == "T"

    assert bench.undo("rank_signal", rank=2, signal="STOP")["phase"] == "undone"
    os.waitid(os.P_PID, rank.pid, os.WCONTINUED | os.WNOWAIT)
    rank.turns_until("turn")


def test_a_rank_has_no_file_number_left_until_it_is_healed(bench: Bench, rank: Rank) -> None:
    bench.give("rank_files_full", rank=2)
    rank.turns_until("Too many open files")

    bench.undo("rank_files_full", rank=2)
    rank.turns_until("turn")


@pytest.mark.parametrize("how", ["truncate", "flip"])
def test_the_newest_checkpoint_is_broken_and_mended(
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


def test_an_agent_that_leaves_mends_the_checkpoint(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which would stay broken without the node."""
    monkeypatch.setenv("COMPOSESIM_SHARED", str(tmp_path / "shared"))
    checkpoint = tmp_path / "shared" / "checkpoint.pt"
    checkpoint.parent.mkdir()
    checkpoint.write_bytes(b"whole" * 100)
    bench.give("corrupt_checkpoint", how="truncate")
    assert checkpoint.read_bytes() == b"whole" * 50
    bench.orders.close()

    assert checkpoint.read_bytes() == b"whole" * 100
    assert bench.told()[-1] == {"id": "fault-1", "phase": "undone", "why": ""}


def test_an_agent_mends_what_the_one_before_it_broke(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node was killed meanwhile, and the heal asked for while nobody was there to hear it."""
    monkeypatch.setenv("COMPOSESIM_SHARED", str(tmp_path / "shared"))
    checkpoint = tmp_path / "shared" / "checkpoint.pt"
    checkpoint.parent.mkdir()
    checkpoint.write_bytes(b"whole" * 100)
    bench.give("corrupt_checkpoint", how="truncate")

    bench.write("fault-1.json", json.dumps({"id": "fault-1", "name": "corrupt_checkpoint", "values": {}, "on": False}))
    bench.orders = Orders(bench.events)

    assert bench.answer() == {"id": "fault-1", "phase": "undone", "why": ""}
    assert checkpoint.read_bytes() == b"whole" * 100


def test_a_checkpoint_written_anew_is_left_as_it_is(
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


@pytest.mark.parametrize(
    ("name", "values", "why"),
    [
        ("rank_signal", {"rank": 5, "signal": "KILL"}, "rank 5 does not run on node-0"),
        ("rank_signal", {"rank": 2, "signal": "NONE"}, "KeyError: 'SIGNONE'"),
        ("rank_fault", {"rank": 2}, "'None' is nothing that a rank could be told to do"),
        ("no_such_order", {}, "'no_such_order' is no order that this node knows"),
        ("../agent", {}, "'../agent' is no order that this node knows"),
        ("balloon", {}, "'balloon' is no order that this node knows"),
        ("memory", {}, "the node has no memory limit of its own: a balloon would take the machine's"),
        ("disk_full", {}, "the node has no --scratch of its own: the disk would be this machine's"),
        ("processes_full", {}, "the node has no limit of processes of its own: the machine's would be used up"),
    ],
)
def test_what_cannot_be_done_says_why_and_ends_nothing(
    bench: Bench, rank: Rank, name: str, values: dict[str, Any], why: str
) -> None:
    assert bench.give(name, **values) == {"id": "fault-1", "phase": "failed", "why": why}
    assert bench.undo(name, **values)["phase"] in ("undone", "failed")
    rank.turns_until("turn")


@pytest.mark.parametrize(
    "text", ["", '{"id": "fault-1", "na', "[]", '{"id": "../../x", "name": "memory", "values": {}, "on": true}']
)
def test_half_an_order_is_told_and_the_whole_one_is_done(bench: Bench, rank: Rank, text: str) -> None:
    bench.write("fault-1.json", text)
    told = bench.answer()

    assert (told["id"], told["phase"]) == ("fault-1", "failed")
    assert told["why"].startswith("'fault-1.json' is not an order: ")
    assert bench.give("rank_signal", rank=2, signal="STOP")["phase"] == "done"


def test_an_agent_started_again_does_no_order_twice(bench: Bench, rank: Rank) -> None:
    """And does what came while it was away."""
    bench.give("rank_signal", rank=2, signal="STOP")
    os.kill(rank.pid, signal.SIGCONT)
    bench.orders = Orders(bench.events)

    assert bench.give("rank_signal", id="fault-2", rank=7, signal="KILL")["id"] == "fault-2"
    rank.turns_until("turn")
    assert [told["id"] for told in bench.told()] == ["fault-1", "fault-2"]


def test_a_rank_that_cannot_come_back_to_python_is_let_be(
    bench: Bench, rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order fails, and is not carried out later."""
    monkeypatch.setattr("compose_sim.node.agent.faults.rank_fault._SECONDS_TO_TAKE", 0.3)
    bench.give("rank_signal", id="fault-0", rank=2, signal="STOP")
    told = bench.give("rank_fault", rank=2, act="raise")
    assert (told["phase"], told["why"]) == ("failed", "rank 2 is in a call that does not return to Python")

    os.kill(rank.pid, signal.SIGCONT)
    rank.turns_until("turn")


def _state_of(rank: Rank) -> str:
    return Path(f"/proc/{rank.pid}/stat").read_text().rpartition(")")[2].split()[0]
