"""What nodes wrote is found in the folder that all share, and in the folder that only one container writes to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from compose_sim.core.plan.model import KINDS
from compose_sim.engine.run_folder.folder import RunFolder
from compose_sim.engine.run_folder.node_files import OWN_EVENTS, NodeFiles, files_of_nodes, folder_of
from compose_sim.engine.run_folder.safe_files import SafeFolder
from tests.builders import a_plan, an_event


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

    of_nodes = ["nodes/master/events/master.jsonl", "nodes/node-0/events/node-0.jsonl"]
    assert NodeFiles(files).event_files() == [OWN_EVENTS, *of_nodes]
    assert files_of_nodes(files, "logs", ".log") == ["nodes/master/logs/driver.0.log", "nodes/node-1/logs/node-1.0.log"]
    assert folder_of(files, "node-0") == "nodes/node-0/"


@pytest.mark.parametrize(
    ("spec", "second"),
    [({}, ["node-1.2.log", "node-1.3.log"]), ({"elastic": "1:2"}, [f"node-1.{rank}.log" for rank in range(4)])],
)
def test_with_a_plan_only_its_nodes_and_ranks_count(tmp_path: Path, spec: dict[str, str], second: list[str]) -> None:
    """A rank that makes thousands of files does not make composesim open them."""
    plan = a_plan(nodes=2, nproc_per_node=2, **spec)
    write(tmp_path, *(f"logs/{node}.{rank}.log" for node in ("node-0", "node-1", "node-2", "x") for rank in range(9)))
    write(tmp_path, "logs/driver.0.log", "logs/node-1.02.log", "events/node-0.jsonl", "events/node-9.jsonl")
    finder = NodeFiles(RunFolder(tmp_path).files, plan)

    assert finder.event_files() == [OWN_EVENTS, "events/node-0.jsonl"]
    assert finder.strays == "events"
    assert finder.names("logs", ".log") == [
        f"logs/{name}" for name in ("driver.0.log", "node-0.0.log", "node-0.1.log", *second)
    ]


def test_files_that_nodes_add_are_found_in_new_and_in_old_folders(tmp_path: Path) -> None:
    write(tmp_path, "nodes/node-0/logs/node-0.0.log", "nodes/node-1/events/node-1.jsonl")
    long_ago = 1_000_000_000
    for folder in [tmp_path, *tmp_path.glob("**/")]:
        os.utime(folder, (long_ago, long_ago))
    finder = NodeFiles(RunFolder(tmp_path).files)

    assert finder.names("logs", ".log") == ["nodes/node-0/logs/node-0.0.log"]
    write(
        tmp_path, "nodes/node-0/logs/node-0.1.log", "nodes/node-1/logs/node-1.0.log", "nodes/node-2/logs/node-2.0.log"
    )
    assert finder.names("logs", ".log") == [
        *("nodes/node-0/logs/node-0.0.log", "nodes/node-0/logs/node-0.1.log"),
        *("nodes/node-1/logs/node-1.0.log", "nodes/node-2/logs/node-2.0.log"),
    ]


def test_a_folder_that_has_just_changed_is_read_again(tmp_path: Path) -> None:
    """The times of two changes may be equal."""
    write(tmp_path, "logs/node-0.0.log")
    times = (tmp_path / "logs").stat()
    finder = NodeFiles(RunFolder(tmp_path).files)
    assert finder.names("logs", ".log") == ["logs/node-0.0.log"]

    write(tmp_path, "logs/node-0.1.log")
    os.utime(tmp_path / "logs", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert finder.names("logs", ".log") == ["logs/node-0.0.log", "logs/node-0.1.log"]


def test_a_settled_folder_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run looks for new files twenty times a second."""
    write(tmp_path, "logs/node-0.0.log")
    os.utime(tmp_path / "logs", (0, 0))
    finder = NodeFiles(RunFolder(tmp_path).files)
    finder.names("logs", ".log")

    monkeypatch.setattr(SafeFolder, "opened", None)
    assert finder.names("logs", ".log") == ["logs/node-0.0.log"]


def test_each_container_gets_folders_that_no_other_one_shares(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / ".composesim" / "runs" / "demo")
    folder.claim()
    folder.clear(os.getuid(), os.getgid(), containers=("master", "node-0"))

    own = {f"nodes/{node}/{kind}" for node in ("master", "node-0") for kind in KINDS}
    assert {str(path.relative_to(folder.path)) for path in folder.path.glob("nodes/*/*")} == own
    assert not any((folder.path / kind).exists() for kind in KINDS)
