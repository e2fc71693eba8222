"""What nodes wrote is found in the folder that all share, and in the folder that only one container writes to."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

from compose_sim.core.plan.model import KINDS
from compose_sim.engine.run_folder.event_tail import EventTail
from compose_sim.engine.run_folder.folder import RunFolder, event_files
from compose_sim.engine.run_folder.node_files import files_of_nodes, folder_of
from tests.builders import an_event


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(an_event("step", node=Path(name).stem, rank=0, step=1).to_json("demo") + "\n")


def test_processes_share_their_folders(tmp_path: Path) -> None:
    write(tmp_path, "logs/node-0.0.log", "logs/node-1.1.log")

    files = RunFolder(tmp_path).files
    assert files_of_nodes(files, "logs", ".log") == ["logs/node-0.0.log", "logs/node-1.1.log"]
    assert folder_of(files, "node-0") == ""


def test_a_container_writes_only_files_that_are_named_after_it(tmp_path: Path) -> None:
    write(
        tmp_path,
        *("nodes/node-0/events/node-0.jsonl", "nodes/node-0/events/node-1.jsonl", "nodes/node-0/events/master.jsonl"),
        *("nodes/node-1/events/composesim.jsonl", "nodes/master/events/master.jsonl"),
        *("nodes/master/logs/driver.0.log", "nodes/node-1/logs/driver.0.log", "nodes/node-1/logs/node-1.0.log"),
    )
    files = RunFolder(tmp_path).files

    assert event_files(files) == ["nodes/master/events/master.jsonl", "nodes/node-0/events/node-0.jsonl"]
    assert files_of_nodes(files, "logs", ".log") == ["nodes/master/logs/driver.0.log", "nodes/node-1/logs/node-1.0.log"]
    assert folder_of(files, "node-0") == "nodes/node-0/"


def test_a_rank_that_starts_late_is_followed(tmp_path: Path) -> None:
    """The folder of a node is not searched while the node reports nothing; at the end, all are."""
    write(tmp_path, "nodes/node-0/events/node-0.jsonl")
    with closing(EventTail(tmp_path)) as tail:
        tail.poll()
        tail.poll()
        write(tmp_path, "nodes/node-0/logs/node-0.0.log")
        found = [event.kind for event in tail.finish()]

    assert found == ["log"]


def test_each_container_gets_folders_that_no_other_one_shares(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / ".composesim" / "runs" / "demo")
    folder.claim()
    folder.clear(os.getuid(), os.getgid(), containers=("master", "node-0"))

    own = {f"nodes/{node}/{kind}" for node in ("master", "node-0") for kind in KINDS}
    assert {str(path.relative_to(folder.path)) for path in folder.path.glob("nodes/*/*")} == own
    assert not any((folder.path / kind).exists() for kind in KINDS)
