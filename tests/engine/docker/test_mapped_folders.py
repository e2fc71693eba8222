"""The mounts of a run are made before its nodes, and removed with it, or once no process runs it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from compose_sim.core.plan.model import STAND_IN, Plan, mapped_folder
from compose_sim.engine.docker.mapped_folders import mount_folders, runs_with_mounts, unmount_absent, unmount_folders
from compose_sim.engine.host.mapped_mount import why_unmappable
from compose_sim.engine.run_folder.folder import RunFolder, runs_folder
from compose_sim.errors import SpecError
from tests.builders import a_plan

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
UNMAPPABLE = Path("/proc/sys/kernel")


@pytest.fixture
def plan(tmp_path: Path) -> Iterator[Plan]:
    """A plan that maps a folder, a file, and what cannot be mapped."""
    if why := why_unmappable(tmp_path):
        pytest.skip(why)
    data, file = tmp_path / "data", tmp_path / "file"
    data.mkdir()
    (data / "weights").write_text("1")
    file.write_text("2")
    run = f"mapped-{secrets.token_hex(4)}"
    folder = runs_folder(tmp_path) / run
    yield replace(a_plan(), run=run, mapped=(str(folder), str(data), str(file), str(UNMAPPABLE)))
    unmount_folders(run)
    assert [(data / "weights").read_text(), file.read_text()] == ["1", "2"]


def claimed(project: Path, plan: Plan) -> RunFolder:
    folder = RunFolder(runs_folder(project) / plan.run)
    folder.claim()
    return folder


def mounts_of(plan: Plan) -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if f" {mapped_folder(plan.run)}/" in line]


def test_root_is_the_stand_in_where_that_can_be_mapped(plan: Plan, tmp_path: Path) -> None:
    own = Path(mapped_folder(plan.run))

    problems = mount_folders(plan, claimed(tmp_path, plan))

    assert [(own / name).stat().st_uid for name in ("0", "1", "1/weights", "2", "3")] == [STAND_IN] * 4 + [0]
    assert [problem.partition(":")[0] for problem in problems] == [f"nodes cannot own what root owns in '{UNMAPPABLE}'"]
    assert own.parent.stat().st_mode & 0o077 == 0
    unmount_folders(plan.run)
    assert (mounts_of(plan), own.exists()) == ([], False)


def test_mounts_of_a_run_under_way_stay(plan: Plan, tmp_path: Path) -> None:
    folder = claimed(tmp_path, plan)
    mount_folders(plan, folder)

    unmount_absent(live=())
    assert runs_with_mounts()[plan.run] == str(folder.path)
    with pytest.raises(SpecError, match=f"'{plan.run}' is under way in '{folder.path}'"):
        mount_folders(plan, claimed(tmp_path / "data", plan))
    folder.release()
    unmount_absent(live=(plan.run,))
    assert len(mounts_of(plan)) == 4

    unmount_absent(live=())
    assert mounts_of(plan) == []


def test_mounts_that_a_crash_left_are_replaced(plan: Plan, tmp_path: Path) -> None:
    folder = claimed(tmp_path, plan)
    mount_folders(plan, folder)

    mount_folders(plan, folder)

    assert len(mounts_of(plan)) == 4


def test_a_file_system_that_cannot_be_mapped_is_found_by_trying(tmp_path: Path) -> None:
    before = Path("/proc/self/mountinfo").read_text()

    assert why_unmappable(UNMAPPABLE) == "Invalid argument"
    why_unmappable(tmp_path)
    assert Path("/proc/self/mountinfo").read_text() == before
