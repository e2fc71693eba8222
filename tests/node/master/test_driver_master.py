"""A driver that sends unexpected messages is disconnected, and the run ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders import PATIENCE_S
from tests.node.harness import NODE_CODE

pytestmark = pytest.mark.train

# Accepts nodes, sends one line, then waits until it is disconnected.
DRIVER = """
import os, socket, sys
link = socket.socket(fileno=int(os.environ["COMPOSESIM_DRIVER_LINK"]))
link.sendall(b'{"type": "accepting"}\\n' + sys.argv[1].encode() + b"\\n")
if sys.argv[2] == "stays":
    link.recv(1)
sys.exit(5)
"""


def drive(folder: Path, line: str, then: str) -> tuple[subprocess.CompletedProcess[str], list[dict[str, object]]]:
    """Run a master whose driver sends this line; return the finished process and the master's events."""
    for name in ("events", "logs", "control"):
        (folder / name).mkdir()
    (folder / "control" / "secret").write_text("5ec3e7")
    driver = folder / "driver.py"
    driver.write_text(DRIVER)
    words = ("--slots", "1", "--host", "127.0.0.1", "--port", "0", "--head-port", "0", "--", driver, line, then)
    done = subprocess.run(
        [sys.executable, NODE_CODE / "__main__.py", "driver-master", *words],
        env={**os.environ, "COMPOSESIM_RUN": "test", "COMPOSESIM_DIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    lines = (folder / "events" / "master.jsonl").read_text().splitlines()
    return done, [json.loads(each) for each in lines]


@pytest.mark.parametrize("line", ["hello", "[1]", '{"a": 1}', '{"type": "accept"}'])
def test_a_driver_that_sends_something_else_is_disconnected(tmp_path: Path, line: str) -> None:
    """The run ends when the driver does."""
    done, events = drive(tmp_path, line, "stays")

    assert done.returncode == 1
    assert "lost the connection to the driver: unexpected message " in done.stderr
    assert "Traceback" not in done.stderr
    assert (events[-1]["kind"], events[-1]["data"]["exit_code"]) == ("ended", 5)  # type: ignore[index]


def test_facts_may_have_any_name(tmp_path: Path) -> None:
    """Even the names of the event's fields."""
    done, events = drive(tmp_path, json.dumps({"type": "ready", "kind": "small", "self": 1, "node": "all"}), "goes")

    facts = next(event["data"] for event in events if event["kind"] == "ready")
    assert facts == {"kind": "small", "self": 1, "node": "all"}
    assert "Traceback" not in done.stderr
