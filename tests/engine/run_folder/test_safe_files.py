"""Files that other users and the code of nodes plant below `.composesim` are neither followed nor read, and do not end a run."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pytest

from compose_sim.app.documents import write_documents
from compose_sim.engine.lifetime.orphans import state_of
from compose_sim.engine.run_folder.event_tail import EventTail
from compose_sim.engine.run_folder.finished import delete, size_of
from compose_sim.engine.run_folder.folder import RunFolder, lay_out, runs_folder
from compose_sim.engine.run_folder.record import read_events, read_logs, read_observed, report_of
from compose_sim.engine.run_folder.safe_files import SafeFolder, UnsafeFileError
from compose_sim.errors import ComposesimError, EngineError, SpecError
from tests.builders import ROOT, a_plan

OWNER, STRANGER = 12345, 54321
SECRET = "secret of the victim"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of other users")


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A private folder with a file under every name that composesim writes, reads or deletes."""
    folder = tmp_path / "victim"
    folder.mkdir(mode=0o700)
    for name in (
        "passwd",
        "token",
        "report.json",
        "lock",
        "plan.json",
        "composesim.jsonl",
        "node-0.0.log",
        "grafana.txt",
    ):
        (folder / name).write_text(SECRET)
    return folder


def contents(folder: Path) -> dict[str, tuple[int, int, str]]:
    """Return mode, owner and text of a folder and everything in it."""
    paths = [folder, *sorted(folder.rglob("*"))]
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mode,
            path.lstat().st_uid,
            path.read_text() if path.is_file() else "",
        )
        for path in paths
    }


def a_run(project: Path, name: str = "demo") -> RunFolder:
    """The folder of a run that has ended."""
    folder = RunFolder(runs_folder(project) / name)
    folder.claim()
    folder.clear(*owner_of(project))
    folder.release()
    return folder


def owner_of(project: Path) -> tuple[int, int]:
    return project.stat().st_uid, project.stat().st_gid


def start_again(folder: RunFolder) -> None:
    """Do what `up` does before it starts nodes."""
    folder.claim()
    try:
        folder.clear(*owner_of(folder.path.parents[2]), token=True)
        plan = a_plan()
        folder.write_plan(plan)
        write_documents(plan, folder.path, image="composesim-host:2")
        folder.append_event("started")
        folder.files.replace("report.json", "{}")
    finally:
        folder.release()


@pytest.mark.parametrize("level", [".composesim", ".composesim/runs", ".composesim/runs/demo"])
def test_a_linked_folder_of_runs_is_refused_and_left_alone(tmp_path: Path, victim: Path, level: str) -> None:
    project = tmp_path / "project"
    (project / level).parent.mkdir(parents=True)
    (project / level).symlink_to(victim)
    before = contents(victim)
    folder = RunFolder(runs_folder(project) / "demo")

    for act in (lambda: start_again(folder), lambda: delete(folder), lambda: report_of(folder)):
        with pytest.raises(SpecError) as caught:
            act()
        assert caught.value.exit_code == 2
        assert caught.value.hint

    assert contents(victim) == before


@pytest.mark.parametrize(
    "name", ["logs", "secrets", "node", "identity", "services", "events", "observations", "control", "debug", "mps"]
)
def test_a_linked_folder_in_a_run_is_replaced_by_a_real_one(tmp_path: Path, victim: Path, name: str) -> None:
    folder, before = a_run(tmp_path), contents(victim)
    folder.files.remove_tree(name)
    (folder.path / name).symlink_to(victim)

    start_again(folder)

    assert contents(victim) == before
    assert not (folder.path / name).is_symlink()


def test_linked_shared_storage_is_refused(tmp_path: Path, victim: Path) -> None:
    """The file is kept from run to run, so it is not simply replaced."""
    folder, before = a_run(tmp_path), contents(victim)
    (folder.path / "shared").rmdir()
    (folder.path / "shared").symlink_to(victim)

    with pytest.raises(UnsafeFileError, match=r"/shared' is a symbolic link") as caught:
        start_again(folder)

    assert contents(victim) == before
    assert caught.value.exit_code == 2
    assert str(folder.path / "shared") in caught.value.hint


def test_deleting_a_run_deletes_links_and_not_what_they_lead_to(tmp_path: Path, victim: Path) -> None:
    folder, before = a_run(tmp_path), contents(victim)
    (folder.path / "shared" / "link").symlink_to(victim)
    (folder.path / "logs").rmdir()
    (folder.path / "logs").symlink_to(victim)

    delete(folder)

    assert not folder.path.exists()
    assert contents(victim) == before


def plant_directory(path: Path, victim: Path) -> None:
    path.mkdir()


def plant_pipe(path: Path, victim: Path) -> None:
    os.mkfifo(path)


def plant_link(path: Path, victim: Path) -> None:
    path.symlink_to(victim / "node-0.0.log")


def plant_endless_device(path: Path, victim: Path) -> None:
    path.symlink_to("/dev/zero")


Plant = Callable[[Path, Path], None]
plants = pytest.mark.parametrize("plant", [plant_directory, plant_pipe, plant_link, plant_endless_device])


@plants
def test_a_run_is_read_past_what_its_nodes_plant(tmp_path: Path, victim: Path, plant: Plant) -> None:
    folder = a_run(tmp_path)
    folder.append_event("started")
    (folder.path / "logs" / "node-0.0.log").write_text("step 1\n")
    for name in ("events/zz.jsonl", "logs/node-0.9.log", "observations/node-0.0.7.jsonl"):
        plant(folder.path / name, victim)

    tail = EventTail(folder.path, None)
    lines = [event.data.get("line") for event in chain.from_iterable(tail.finish())]
    tail.close()

    assert lines == [None, "step 1"]
    assert [event.kind for event in read_events(folder.path)] == ["started"]
    assert read_logs(folder.path, []) == {0: ("step 1",)}
    assert list(read_observed(folder.path)) == []


@plants
@pytest.mark.parametrize("name", ["report.json", "plan.json", "lock"])
def test_what_replaces_a_file_of_composesim_is_not_read(tmp_path: Path, victim: Path, plant: Plant, name: str) -> None:
    folder = a_run(tmp_path)
    folder.write_plan(a_plan())
    (folder.path / name).unlink(missing_ok=True)
    plant(folder.path / name, victim)

    with pytest.raises(SpecError) as caught:
        report_of(folder) if name != "lock" else folder.claim()

    assert SECRET not in str(caught.value)
    assert SECRET not in caught.value.evidence


@plants
def test_events_are_not_appended_to_what_a_node_plants(tmp_path: Path, victim: Path, plant: Plant) -> None:
    folder, before = a_run(tmp_path), contents(victim)
    plant(folder.path / "journal" / "composesim.jsonl", victim)

    with pytest.raises(EngineError, match=r"composesim\.jsonl' is "):
        folder.append_event("started")

    assert contents(victim) == before


def test_a_tail_keeps_what_it_follows_when_a_node_replaces_the_folder(tmp_path: Path, victim: Path) -> None:
    folder = a_run(tmp_path)
    log = folder.path / "logs" / "node-0.0.log"
    log.write_text("before\n")
    tail = EventTail(folder.path, None)
    before = tail.poll()
    (folder.path / "logs").rename(folder.path / "moved")
    (folder.path / "logs").symlink_to(victim)
    with (folder.path / "moved" / "node-0.0.log").open("a") as file:
        file.write("after\n")
    after = [*chain.from_iterable(tail.finish())]
    tail.close()

    assert [event.data["line"] for event in (*before, *after)] == ["before", "after"]


def test_only_the_owner_can_enter_what_nodes_write_to(tmp_path: Path) -> None:
    folder = a_run(tmp_path)
    start_again(folder)
    modes = {
        str(path.relative_to(tmp_path)): stat.S_IMODE(path.lstat().st_mode)
        for path in (tmp_path / ".composesim").rglob("*")
        if not {"identity", "empty"} & {path.name, path.parent.name}  # the plan is of another user, who reads these
    }
    run = ".composesim/runs/demo"

    assert {name for name, mode in modes.items() if (tmp_path / name).is_file() and mode & 0o077} == set()
    assert {name for name, mode in modes.items() if (tmp_path / name).is_dir() and mode & 0o066} == set()
    for name in ("events", "logs", "observations", "shared", "debug", "mps", "control", "secrets"):
        assert modes[f"{run}/{name}"] == 0o700
    assert modes[run] == 0o711  # the Docker daemon may need to traverse it


@pytest.mark.parametrize("name", ["../x", "a/../../x", "logs//x", "."])
def test_a_name_does_not_lead_out_of_its_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnsafeFileError):
        a_run(tmp_path).files.read_text(name)


def test_folders_made_together_are_those_made_one_by_one_and_a_link_among_them_is_refused(
    tmp_path: Path, victim: Path
) -> None:
    files = SafeFolder(tmp_path / ".composesim" / "runs" / "run")
    names = [f"nodes/{node}/{kind}" for node in ("node-0", "node-1") for kind in ("events", "logs")]
    files.path.parent.mkdir(parents=True)
    files.make_folders([*names, "shared"])
    assert sorted(str(each.relative_to(files.path)) for each in files.path.rglob("*")) == sorted(
        ["nodes", "nodes/node-0", "nodes/node-1", *names, "shared"]
    )
    (files.path / "nodes/node-1/logs").rmdir()
    (files.path / "nodes/node-1/logs").symlink_to(victim)
    with pytest.raises(UnsafeFileError, match="nodes/node-1/logs"):
        files.make_folders(names)


def test_folders_nested_by_the_thousand_are_measured_and_deleted(tmp_path: Path, victim: Path) -> None:
    """A script that goes down and down leaves more levels than a process may have open files, or than Python may recurse."""
    folder, before = a_run(tmp_path), contents(victim)
    logs = os.open(folder.path / "logs", os.O_RDONLY)
    below = os.dup(logs)
    for _ in range(1500):
        os.mkdir("d", dir_fd=below)
        deeper = os.open("d", os.O_RDONLY, dir_fd=below)
        os.close(below)
        below = deeper
    os.symlink(victim, "link", dir_fd=below)
    os.close(below)
    os.close(logs)

    assert size_of(folder) > 0
    folder.files.remove_tree("logs")

    assert not (folder.path / "logs").exists()
    assert contents(victim) == before


@as_root
@pytest.mark.parametrize(
    "level", [".composesim", ".composesim/runs", ".composesim/runs/demo", ".composesim/runs/demo/logs"]
)
def test_a_folder_that_a_stranger_made_is_refused(tmp_path: Path, level: str) -> None:
    """Two users share a project folder; one created folders under the name that the other will use."""
    folder = a_run(tmp_path)
    (tmp_path / level).parent.chmod(0o1777)
    os.chown(tmp_path / level, STRANGER, STRANGER)

    with pytest.raises(SpecError, match=f"belongs to the user {STRANGER}") as caught:
        start_again(folder) if level.endswith("runs/demo") else folder.files.replace("logs/node-0.0.log", "private")

    assert caught.value.exit_code == 2
    assert str(tmp_path / level) in caught.value.hint


@as_root
def test_nodes_own_the_folders_that_they_write_to(tmp_path: Path) -> None:
    """Horovod's nodes run as an ordinary user, also in a project of root. They read their code and their token."""
    folder = RunFolder(runs_folder(tmp_path) / "demo")
    folder.claim()
    folder.clear(STRANGER, STRANGER, token=True)
    folder.append_event("started")
    folder.release()

    assert folder.read_token() != ""
    assert (folder.path / "events").stat().st_uid == STRANGER
    for name, mode in [("secrets/token", 0o640), ("node/__main__.py", 0o640), ("node/agent/agent.py", 0o640)]:
        status = (folder.path / name).stat()
        assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (0, STRANGER, mode)


@as_root
def test_root_does_not_print_a_file_that_only_root_can_read(tmp_path: Path, victim: Path) -> None:
    folder = RunFolder(runs_folder(tmp_path) / "demo")
    folder.claim()
    folder.clear(OWNER, OWNER)
    folder.release()
    (victim / "node-0.0.log").chmod(0o600)
    os.link(victim / "node-0.0.log", folder.path / "logs" / "node-0.7.log")

    tail = EventTail(folder.path, None)
    events = [*chain.from_iterable(tail.finish())]
    tail.close()

    assert events == []


@as_root
def test_runs_of_another_user_are_read_only_in_a_trusted_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = a_run(tmp_path)
    folder.write_plan(a_plan())
    for path in (tmp_path, *tmp_path.rglob("*")):
        os.chown(path, OWNER, OWNER)

    assert folder.files.status("plan.json") is None
    with pytest.raises(SpecError, match=f"belongs to the user {OWNER}"):
        folder.read_plan()
    monkeypatch.setenv("SUDO_UID", str(OWNER))
    assert folder.read_plan() == a_plan()


@as_root
def test_a_rendered_folder_belongs_to_the_caller_except_for_what_nodes_write(tmp_path: Path) -> None:
    lay_out(tmp_path / "rendered", OWNER, OWNER, token=True)

    owners = {path.name: path.stat().st_uid for path in (tmp_path / "rendered").iterdir()}
    assert {name for name, owner in owners.items() if owner == 0} == {"node", "control", "journal", "secrets"}
    token = tmp_path / "rendered" / "secrets" / "token"
    assert (token.stat().st_gid, stat.S_IMODE(token.stat().st_mode)) == (OWNER, 0o640)
    assert stat.S_IMODE(token.parent.stat().st_mode) == 0o2750


def test_a_linked_run_is_under_way_so_that_nothing_ends_it(tmp_path: Path, victim: Path) -> None:
    runs_folder(tmp_path).mkdir(parents=True)
    (runs_folder(tmp_path) / "demo").symlink_to(victim)

    assert state_of(runs_folder(tmp_path) / "demo") == "under way"


def test_up_ends_with_an_error_and_a_hint_in_a_linked_run_folder(tmp_path: Path, victim: Path) -> None:
    runs_folder(tmp_path).mkdir(parents=True)
    (runs_folder(tmp_path) / "demo").symlink_to(victim)
    (tmp_path / "train.py").write_text("print('fine')")
    before = contents(victim)

    command = [sys.executable, "-m", "compose_sim", "up", "--engine", "local", "--name", "demo", "--json", "train.py"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )

    assert done.returncode == 2, done.stderr
    error = json.loads(done.stdout)["error"]
    assert (str(runs_folder(tmp_path) / "demo") in error["message"], bool(error["hint"])) == (True, True)
    assert contents(victim) == before


def test_a_copy_keeps_times(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "below").mkdir(parents=True)
    (source / "below" / "a.py").write_text("a")
    (source / "__pycache__").mkdir()
    os.utime(source / "below" / "a.py", (1e9, 1e9))
    files = SafeFolder(tmp_path / "target")

    files.copy_tree(source, "node", leave_out=("__pycache__",))

    assert files.folders("node") == ["below"]
    assert files.files("node") == []
    assert (tmp_path / "target/node/below/a.py").stat().st_mtime == 1e9


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    files = SafeFolder(tmp_path)
    files.replace("report.json", "first")

    with pytest.raises(UnicodeEncodeError):
        files.replace("report.json", "second \ud800")

    assert (files.read_text("report.json"), files.files()) == ("first", ["report.json"])


def test_an_error_names_the_whole_path(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        RunFolder(runs_folder(tmp_path) / "demo").files.read_text("report.json")

    assert str(caught.value.filename).startswith(str(tmp_path))


def test_errors_are_errors_of_the_request() -> None:
    assert issubclass(UnsafeFileError, ComposesimError)
    assert UnsafeFileError("x").exit_code == 2
