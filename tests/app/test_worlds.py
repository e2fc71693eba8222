"""Test what a copy of a project holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from compose_sim.app.worlds import make_world


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    for name in (
        "train.py",
        "data/train.pt",
        "model.pt",
        "checkpoints/last.pt",
        "out/step_5.pt",
        "ckpt.py",
        ".git/HEAD",
    ):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return folder


def test_data_and_code_are_copied_and_checkpoints_are_not(project: Path, tmp_path: Path) -> None:
    world = make_world(project, tmp_path / "world")

    copied = {str(path.relative_to(world.project)) for path in world.project.rglob("*") if path.is_file()}
    assert copied == {"train.py", "data/train.pt", "model.pt", "ckpt.py"}
    assert sorted(world.left_out) == ["checkpoints/last.pt", "out/step_5.pt"]


def test_what_is_written_in_a_copy_does_not_change_the_project(project: Path, tmp_path: Path) -> None:
    world = make_world(project, tmp_path / "world")

    (world.project / "model.pt").write_text("other")

    assert (project / "model.pt").read_text() == "model.pt"


def test_a_link_into_the_project_leads_into_the_copy(project: Path, tmp_path: Path) -> None:
    (project / "latest").symlink_to("model.pt")

    world = make_world(project, tmp_path / "world")

    assert (world.project / "latest").resolve() == (world.project / "model.pt").resolve()


def test_files_of_a_run_are_left_out(project: Path, tmp_path: Path) -> None:
    world = make_world(project, tmp_path / "world", without=frozenset([str(project / "model.pt")]))

    assert not (world.project / "model.pt").exists()
    assert (project / "model.pt").exists()


def test_tables_are_checkpoints_if_their_names_say_so(tmp_path: Path) -> None:
    project = tmp_path / "project"
    files = ("data/server_logs.csv", "latest_checkpoint.txt", "logs/step.json")
    for name in files:
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("1")

    world = make_world(project, tmp_path / "world")

    assert sorted(world.left_out) == ["latest_checkpoint.txt", "logs/step.json"]
