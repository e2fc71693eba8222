"""Delete the folders of old runs, so that a project does not fill the disk."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from compose_sim.engine.run_folder.folder import RunFolder
from compose_sim.engine.run_folder.record import delete, finished_runs
from compose_sim.errors import SpecError

_MOST_LEVELS = 100  # of folders in a run's folder that are measured; each takes a file descriptor


def retire(project: Path, *, most_runs: int, most_bytes: int) -> tuple[str, ...]:
    """
    Delete the oldest finished runs of a project beyond a number, and beyond a size in total; return their names.

    Only runs that wrote a report are deleted, and none that may still have nodes because they were started with --keep.
    """
    retired, total = [], 0
    for number, folder in enumerate(filter(_is_over, finished_runs(project)), 1):
        total += size_of(folder)
        if (number > most_runs or total > most_bytes) and _delete(folder):
            retired.append(folder.name)
    return tuple(retired)


def delete_finished(project: Path, *, live: Collection[str]) -> tuple[str, ...]:
    """Delete the folders of all runs of a project that no process is running, except those that are `live`; return their names."""
    return tuple(folder.name for folder in finished_runs(project) if folder.name not in live and _delete(folder))


def size_of(folder: RunFolder) -> int:
    """Return the bytes on disk of a run's folder, including the shared storage."""
    total = 0
    with suppress(OSError, SpecError), folder.files.opened(as_owner=False) as opened:
        for path, folders, files, below in os.fwalk(".", dir_fd=opened, follow_symlinks=False):
            if path.count("/") == _MOST_LEVELS:
                folders.clear()
            for name in files:
                with suppress(OSError):
                    total += os.stat(name, dir_fd=below, follow_symlinks=False).st_blocks * 512
    return total


def _is_over(folder: RunFolder) -> bool:
    try:
        return folder.files.status("report.json") is not None and not folder.read_plan().keep
    except SpecError:  # another version of composesim wrote the plan
        return False


def _delete(folder: RunFolder) -> bool:
    """Delete a folder; return False if another process has just claimed it, or if it contains files of another user."""
    try:
        delete(folder)
    except (OSError, SpecError):
        return False
    return True
