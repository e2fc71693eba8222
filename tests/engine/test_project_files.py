"""Files of a project are put back as they were, and others are left alone."""

from __future__ import annotations

import os
from pathlib import Path

from compose_sim.engine.project_files import kept


def test_changed_and_deleted_files_come_back_with_mode_and_time(tmp_path: Path) -> None:
    log, state, same = (tmp_path / name for name in ("log.txt", "state.pt", "same.txt"))
    for each in (log, state, same):
        each.write_text(each.name)
    log.chmod(0o640)
    os.utime(log, ns=(1_000, 2_000))
    number = same.stat().st_ino

    with kept([str(log), str(state), str(same), str(tmp_path / "missing")], tmp_path):
        log.write_text("other")
        state.unlink()

    assert (log.read_text(), state.read_text(), same.stat().st_ino) == ("log.txt", "state.pt", number)
    assert (log.stat().st_mode & 0o777, log.stat().st_mtime_ns) == (0o640, 2_000)
    assert not (tmp_path / "missing").exists()


def test_links_and_files_outside_of_the_project_are_left(tmp_path: Path) -> None:
    project, outside = tmp_path / "project", tmp_path / "outside.txt"
    project.mkdir()
    outside.write_text("before")
    link = project / "link.txt"
    link.symlink_to(outside)

    with kept([str(outside), str(link)], project):
        outside.write_text("after")

    assert (outside.read_text(), link.is_symlink()) == ("after", True)
