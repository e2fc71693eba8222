"""Find the runs of a project that are over, wait for the end of one, and delete the folders of those that are not kept."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from compose_sim.engine.run_folder.folder import RunFolder, is_run_folder, runs_folder, runs_of
from compose_sim.engine.run_folder.node_files import OWN_EVENTS
from compose_sim.engine.run_folder.safe_files import SafeFolder
from compose_sim.errors import SpecError

_MAX_LEVELS = 100  # of folders in a run's folder that are measured; each takes a file descriptor


def finished_runs(project: Path) -> Iterator[RunFolder]:
    """Yield the runs of a project that no process is running, the latest first."""
    plans = {folder: plan.st_mtime for folder in runs_of(project) if (plan := folder.files.status("plan.json"))}
    for folder in sorted(plans, key=plans.__getitem__, reverse=True):
        if belongs_to(folder, project) and not folder.is_claimed():
            yield folder


def belongs_to(folder: RunFolder, project: Path) -> bool:
    """Return whether a run in the project's folder for runs is one of this project: --runs-dir may be that of several."""
    if runs_folder(project).is_relative_to(project):
        return True
    try:
        return Path(folder.read_plan().working_directory) == project
    except SpecError:  # another version of composesim wrote the plan
        return False


def end_of(folder: RunFolder) -> threading.Event:
    """Return an event that is set as soon as no process is running this run."""
    over = threading.Event()
    try:
        lock = folder.open_lock()
    except FileNotFoundError:
        over.set()
        return over
    threading.Thread(target=_wait_for_lock, args=(lock, over), daemon=True).start()
    return over


def delete(folder: RunFolder) -> None:
    """Delete a run's folder; raise SpecError if it is not the folder of a run, or a process is running the run."""
    path = folder.path
    is_run = any(folder.files.status(name) for name in ("lock", "plan.json"))
    if not (is_run_folder(path) and is_run):
        raise SpecError(f"'{path}' is not the folder of a run and was not deleted", hint="composesim ps --all")
    if folder.is_claimed():
        raise SpecError(f"the run '{folder.name}' is running: its folder was not deleted", hint="composesim ps")
    folder.claim()  # no run of this name may begin meanwhile
    try:
        SafeFolder(path.parent).remove_tree(path.name)
    finally:
        folder.release()


def discard_unstarted(folder: RunFolder) -> None:
    """Delete the folder of a run that was refused before its first event, but not what an earlier run of this name has stored."""
    if folder.files.status(OWN_EVENTS) or not is_run_folder(folder.path):
        return
    if folder.files.files("shared") or folder.files.folders("shared"):
        folder.files.remove("plan.json")  # so that no command takes it for a run
    else:
        SafeFolder(folder.path.parent).remove_tree(folder.name)


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
    with suppress(OSError, SpecError), folder.files.opened() as opened:
        for path, folders, files, below in os.fwalk(".", dir_fd=opened, follow_symlinks=False):
            if path.count("/") == _MAX_LEVELS:
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


def _wait_for_lock(lock: int, over: threading.Event) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_SH)  # shared, so that several waiting processes do not wait for one another
    finally:
        os.close(lock)
    over.set()
