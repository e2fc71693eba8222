"""The folder that holds a project's runs."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from compose_sim.engine.run_folder.folder import RunFolder, location_choice, runs_folder
from tests.scenarios.conftest import BARE, Project


def test_the_project_keeps_its_runs(tmp_path: Path) -> None:
    assert runs_folder(tmp_path) == tmp_path / ".composesim" / "runs"
    assert location_choice(tmp_path) is None


def test_the_user_chooses_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPOSESIM_RUNS", str(tmp_path / "elsewhere"))

    folder = RunFolder(runs_folder(tmp_path / "project") / "demo")
    folder.claim()
    folder.release()

    assert folder.path == tmp_path / "elsewhere" / ".composesim" / "runs" / "demo"
    assert not stat.S_IMODE((tmp_path / "elsewhere").stat().st_mode) & 0o066


@pytest.fixture
def read_only(tmp_path: Path) -> Path:
    """A project on a read-only file system, which root cannot write to either."""
    if os.geteuid():
        pytest.skip("only root can mount")
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text("print('ran')\n")
    subprocess.run(["mount", "--bind", folder, folder], check=True)
    subprocess.run(["mount", "-o", "remount,ro,bind", folder], check=True)
    return folder


@pytest.mark.train
def test_a_project_that_cannot_be_written_runs(
    read_only: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a private folder of the user, in which the other commands find the run."""
    state = tmp_path / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    try:
        project = Project(read_only)
        done = project.run("up", "--engine", "local", *BARE, "--name", "demo", "--json", "train.py")
        logs = project.run("logs", "--run", "demo")
    finally:
        subprocess.run(["umount", read_only], check=True)

    (choice,) = [choice for choice in done.report["choices"] if choice["what"] == "runs"]
    assert (done.status, done.report["verdict"]) == (0, "passed")
    assert "cannot be written" in choice["why"]
    assert logs.stdout.count("ran\n") == 2
    (home,) = (state / "composesim").iterdir()
    assert choice["value"] == str(home / ".composesim" / "runs")
    assert not stat.S_IMODE(home.stat().st_mode) & 0o066


@pytest.mark.train
def test_an_option_places_runs_elsewhere(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write("train.py", "print('ran')\n")

    up = ("up", "--engine", "local", *BARE, "--name", "demo", "train.py")
    done = project.run("--runs-dir", "elsewhere", *up)

    assert done.status == 0, done.stderr
    assert (tmp_path / "elsewhere" / ".composesim" / "runs" / "demo" / "report.json").is_file()
    assert not (tmp_path / ".composesim").exists()
    assert project.run("--runs-dir", "elsewhere", "logs", "--run", "demo").stdout.count("ran\n") == 2
