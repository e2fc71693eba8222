"""Mount the folders of a run in which nodes shall own what root owns, and remove these mounts, also those of runs that crashed.

They are below `/run/composesim/RUN`, which only root can enter. A file beside them names the run's folder, whose lock tells whether
the run is under way.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from compose_sim.core.plan.model import MAPPED, Plan, mapped_folder
from compose_sim.engine.host.mapped_mount import mount_mapped, mount_unmapped, unmount
from compose_sim.engine.run_folder.folder import RunFolder
from compose_sim.errors import EngineError, SpecError

_PLACE = Path(MAPPED)
_FOLDER = "folder"  # the file with the path of the run's folder


def mount_folders(plan: Plan, folder: RunFolder) -> list[str]:
    """
    Mount what the plan names, before there is a node; return what nodes cannot own there, and why.

    Mounts that a crashed run of this name left are replaced. Raises EngineError if the run's folder cannot be mounted.
    """
    if not plan.mapped:
        return []
    own = Path(mapped_folder(plan.run))
    _take_place(own, folder)
    problems = []
    for number, source in enumerate(plan.mapped):  # the run's folder first
        if problem := _mount(Path(source), own / str(number), or_as_is=number > 0):
            problems.append(f"nodes cannot own what root owns in '{source}': {problem}")
    return problems


def _take_place(own: Path, folder: RunFolder) -> None:
    """Make the folder of the mounts of a run; raise SpecError if another run with this name is under way."""
    other = runs_with_mounts().get(own.name)
    if other and Path(other) != folder.path and RunFolder(Path(other)).is_claimed():
        raise SpecError(f"a run named '{own.name}' is under way in '{other}'", hint="choose another --name")
    unmount_folders(own.name)
    for path in (_PLACE, own):
        path.mkdir(0o700, exist_ok=True)
    (own / _FOLDER).write_text(str(folder.path))


def _mount(source: Path, target: Path, *, or_as_is: bool = False) -> str:
    """Mount a file or folder; return why it is not mapped, or raise EngineError if it must be."""
    target.mkdir() if source.is_dir() else target.touch()
    try:
        mount_mapped(source, target)
    except OSError as error:
        if or_as_is:
            mount_unmapped(source, target)
            return str(error.strerror)
        raise EngineError(
            f"'{source}' cannot be mounted for nodes that do not run as root: {error.strerror}",
            hint="composesim up --user root …",
        ) from None
    return ""


def unmount_folders(run: str) -> bool:
    """Remove the mounts of a run; return whether it had any."""
    own = Path(mapped_folder(run))
    try:
        targets = [each for each in own.iterdir() if each.name != _FOLDER]
    except (FileNotFoundError, PermissionError):  # others than root have none
        return False
    with suppress(FileNotFoundError):  # another process removes them too
        for target in targets:
            while unmount(target):
                pass
            target.rmdir() if target.is_dir() else target.unlink()  # never more: a mount that is left would lose its files
        (own / _FOLDER).unlink(missing_ok=True)
        own.rmdir()
    return True


def runs_with_mounts() -> dict[str, str]:
    """Return the runs that have mounts, and their folders."""
    try:
        return {own.name: _folder_of(own.name) for own in _PLACE.iterdir()}
    except (FileNotFoundError, PermissionError):
        return {}


def unmount_absent(live: Collection[str]) -> list[str]:
    """Remove the mounts of runs that are not `live` and that no process is running; return these runs."""
    found = runs_with_mounts().items()
    absent = [run for run, folder in found if run not in live and folder and not RunFolder(Path(folder)).is_claimed()]
    return [run for run in absent if unmount_folders(run)]


def _folder_of(run: str) -> str:
    with suppress(OSError):
        return (Path(mapped_folder(run)) / _FOLDER).read_text()
    return ""
