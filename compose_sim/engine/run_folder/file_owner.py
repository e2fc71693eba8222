"""Give files and folders of a run to the user of the nodes, or let that user read them through the group."""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress

_SHARED = stat.S_ISGID | stat.S_IRGRP | stat.S_IXGRP


def give(descriptor: int, owner: tuple[int, int] | None) -> None:
    """Give a file or folder to a user and group, if this process is root."""
    status = os.fstat(descriptor)
    if owner and os.geteuid() == 0 and (status.st_uid, status.st_gid) != owner:
        os.fchown(descriptor, *owner)


def share(descriptor: int) -> None:
    """Let the group read a file, or whatever will be made in a folder."""
    mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
    os.fchmod(descriptor, mode | (_SHARED if stat.S_ISDIR(os.fstat(descriptor).st_mode) else stat.S_IRGRP))


def is_shared(folder: int) -> bool:
    """Return whether the group can read what will be made in a folder."""
    return os.fstat(folder).st_mode & _SHARED == _SHARED


def owner_of_new_files(folder: int) -> int:
    """Return who owns the files that this process makes in a folder: on some network file systems another user. -1 if it cannot."""
    name = f".composesim.{secrets.token_hex(4)}"
    with suppress(OSError):
        descriptor = os.open(
            name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder
        )
        os.unlink(name, dir_fd=folder)
        try:
            return os.fstat(descriptor).st_uid
        finally:
            os.close(descriptor)
    return -1
