"""What the agent does with files that a hostile rank has put in its folder."""

from __future__ import annotations

import os
import selectors
from collections.abc import Iterator
from pathlib import Path

import pytest

from compose_sim.node.agent.stalls import stack_dump
from compose_sim.node.shared.event_log import EventLog
from compose_sim.node.shared.rank_logs import RankLogs
from compose_sim.node.shared.regular_files import open_to_append, read_regular


@pytest.fixture(params=["pipe", "pipe with a reader", "link", "device"])
def trap(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Return the path of an event file that is no regular file."""
    path, kind = tmp_path / "nodes" / "node-0" / "events" / "node-0.jsonl", request.param
    path.parent.mkdir(parents=True)
    if kind == "link":
        (tmp_path / "victim").write_text("untouched\n")
        path.symlink_to(tmp_path / "victim")
    elif kind == "device":
        os.mknod(path, 0o20644, os.makedev(1, 5))
    else:
        os.mkfifo(path)
    if kind == "pipe with a reader":
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb"):
            yield path
    else:
        yield path


def test_no_trap_is_opened(trap: Path) -> None:
    with pytest.raises(OSError, match=r"node-0\.jsonl"):
        open_to_append(trap)
    with pytest.raises(OSError, match=r"node-0\.jsonl"):
        read_regular(trap, 10)


def test_an_event_is_printed_instead(trap: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    EventLog(trap.parent.parent, "run", "node-0").emit("step", step=7)
    assert '"step": 7' in capfd.readouterr().err
    assert not trap.is_symlink() or (tmp_path / "victim").read_text() == "untouched\n"


def test_the_output_of_a_rank_is_still_printed(trap: Path, capfd: pytest.CaptureFixture[str]) -> None:
    trap.rename(trap.with_name("node-0.0.log"))
    with selectors.DefaultSelector() as selector:
        logs = RankLogs(trap.parent, "node-0", selector, echo=True)
        output = logs.open(0)
        os.write(output, b"loss 1.5\n")
        os.close(output)
        logs.finish(1.0)
    assert "loss 1.5" in capfd.readouterr().out


def test_readers_go_on_without_it(trap: Path) -> None:
    assert stack_dump.read(trap, 0) == ()


def test_a_limit_and_an_offset_are_kept(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    assert read_regular(tmp_path / "file", 3, offset=4) == b"456"
    assert read_regular(tmp_path / "file", -1, offset=4) == b"456789"
