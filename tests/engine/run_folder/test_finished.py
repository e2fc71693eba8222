"""The oldest finished runs are deleted, but no run that is running or kept."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from compose_sim.cli.commands.removal import down_command
from compose_sim.engine.run_folder.finished import delete_finished, retire, size_of
from compose_sim.engine.run_folder.folder import RunFolder, runs_folder, runs_of
from tests.builders import a_plan, a_report

PLENTY = 1 << 40


def a_run(
    project: Path, name: str, age: int, *, shared_bytes: int = 0, finished: bool = True, keep: bool = False
) -> RunFolder:
    """Write the folder of a run whose plan is `age` seconds old."""
    folder = RunFolder(runs_folder(project) / name)
    folder.claim()
    folder.write_plan(replace(a_plan(run=name, keep=keep), working_directory=str(project)))
    if finished:
        folder.write_report(a_report(run=name))
    folder.files.make_folder("shared")
    (folder.path / "shared" / "weights").write_bytes(b"w" * shared_bytes)
    os.utime(folder.path / "plan.json", (1e9 - age, 1e9 - age))
    folder.release()
    return folder


def names(project: Path) -> list[str]:
    return [folder.name for folder in runs_of(project)]


def test_the_oldest_runs_beyond_the_number_are_deleted(tmp_path: Path) -> None:
    for age, name in enumerate(("b", "a", "c")):
        a_run(tmp_path, name, age)

    assert retire(tmp_path, most_runs=2, most_bytes=PLENTY) == ("c",)
    assert names(tmp_path) == ["a", "b"]


def test_shared_storage_counts_towards_the_size(tmp_path: Path) -> None:
    new, old = a_run(tmp_path, "new", 0, shared_bytes=1 << 20), a_run(tmp_path, "old", 1, shared_bytes=1 << 20)
    assert size_of(old) >= 1 << 20

    assert retire(tmp_path, most_runs=20, most_bytes=size_of(new) + size_of(old)) == ()
    assert retire(tmp_path, most_runs=20, most_bytes=size_of(new) + (1 << 20)) == ("old",)
    assert names(tmp_path) == ["new"]


def test_no_run_is_retired_that_lives_is_kept_or_has_no_report(tmp_path: Path) -> None:
    live = a_run(tmp_path, "live", 1)
    a_run(tmp_path, "kept", 2, keep=True)
    a_run(tmp_path, "crashed", 3, finished=False)
    live.claim()

    assert retire(tmp_path, most_runs=0, most_bytes=0) == ()
    assert delete_finished(tmp_path, live={"kept"}) == ("crashed",)
    assert names(tmp_path) == ["kept", "live"]
    live.release()


def test_a_link_in_shared_storage_is_neither_counted_nor_followed(tmp_path: Path) -> None:
    treasure = tmp_path / "treasure"
    treasure.mkdir()
    (treasure / "file").write_bytes(b"t" * (1 << 20))
    run = a_run(tmp_path, "run", 0)
    (run.path / "shared" / "link").symlink_to(treasure)

    assert size_of(run) < 1 << 20
    assert retire(tmp_path, most_runs=0, most_bytes=0) == ("run",)
    assert (treasure / "file").is_file()


@pytest.fixture
def sharing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Return two projects that share a folder for runs."""
    monkeypatch.setenv("COMPOSESIM_RUNS", str(tmp_path / "runs"))
    return tmp_path / "ours", tmp_path / "theirs"


def test_projects_that_share_a_folder_for_runs_delete_only_their_own(sharing: tuple[Path, Path]) -> None:
    ours, theirs = sharing
    a_run(ours, "old", 2)
    a_run(theirs, "newest", 0)
    a_run(ours, "new", 1)

    assert retire(ours, most_runs=1, most_bytes=PLENTY) == ("old",)
    assert delete_finished(ours, live=()) == ("new",)
    assert names(ours) == names(theirs) == ["newest"]


def test_down_all_leaves_the_runs_of_other_projects_in_a_shared_folder(
    sharing: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = sharing
    a_run(ours, "mine", 1)
    a_run(theirs, "finished", 1)
    live = a_run(theirs, "live", 0, finished=False)
    live.claim()  # as if this process were running it
    ours.mkdir()
    monkeypatch.chdir(ours)

    outcome = CliRunner().invoke(down_command, ["--all", "--purge", "--yes"])

    assert outcome.exit_code == 0, outcome.output
    assert names(theirs) == ["finished", "live"]
    live.release()
