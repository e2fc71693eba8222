"""Refuse files and folders below `.composesim` that composesim would not have created."""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path
from typing import NoReturn

from compose_sim.engine.project_owner import is_trusted
from compose_sim.engine.run_folder.file_owner import owner_of_new_files
from compose_sim.errors import SpecError

_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a folder",
    stat.S_IFREG: "a regular file",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class UnsafeFileError(SpecError):
    """Something below `.composesim` is not what composesim would have created there, and may lead elsewhere."""


def kind_of(status: os.stat_result) -> str:
    """Return what a file is, such as `a named pipe`."""
    return _KINDS.get(stat.S_IFMT(status.st_mode), "of an unknown kind")


def refuse_kind(path: Path, status: os.stat_result, wanted: int) -> NoReturn:
    raise UnsafeFileError(f"'{path}' is {kind_of(status)}, not {_KINDS[wanted]}", hint=f"ls -ld {path}, then delete it")


def refuse_owner(path: Path | str, owner: int) -> NoReturn:
    try:
        name = f"'{pwd.getpwuid(owner).pw_name}'"
    except KeyError:
        name = str(owner)
    raise UnsafeFileError(
        f"'{path}' belongs to the user {name}, who could read or replace what a run keeps there",
        hint=f"ls -ld {path}, then delete it, or use another folder: composesim --runs-dir FOLDER …",
    )


def check_owner(path: str, folder: int, above: int, base: int, *, in_run: bool) -> None:
    """
    Trust root, the caller, and the owner of the project if the caller is root and trusts that user.

    A run's folders for nodes may belong to the user of the nodes. Only root can have put such a folder where only trusted users write.
    """
    owner, parent, project = os.fstat(folder).st_uid, os.fstat(above), os.fstat(base).st_uid
    trusted = {0, os.geteuid() or (project if is_trusted(project) else 0)}
    if owner in trusted or (in_run and parent.st_uid in trusted and not parent.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
        return
    if owner != owner_of_new_files(base):
        refuse_owner(path, owner)
