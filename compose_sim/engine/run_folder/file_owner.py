"""Act as the owner of a folder, if this process is root, and give files to that user."""

from __future__ import annotations

import ctypes
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from compose_sim.engine.project_owner import Owner
from compose_sim.errors import EnvironmentMissingError

_SHARED = stat.S_ISGID | stat.S_IRGRP | stat.S_IXGRP
_LIBC = ctypes.CDLL(None)


def act_as_owner_of(folder: int) -> None:
    """Do what `act_as` does, for the owner of an open folder."""
    status = os.fstat(folder)
    act_as(status.st_uid, status.st_gid)


@contextmanager
def acting_as(owner: Owner | None) -> Iterator[None]:
    """Do what `act_as` does inside the context, if there is an owner."""
    if owner:
        act_as(owner.user, owner.group)
    try:
        yield
    finally:
        if owner:
            act_as(os.geteuid(), os.getegid())


def act_as(user: int, group: int) -> None:
    """
    Have the kernel check this thread's accesses to files as if this user made them. New files belong to that user.

    This changes the file system user id, which Linux keeps per thread. `os.seteuid` would affect all threads, and signals.
    """
    if not hasattr(_LIBC, "setfsuid"):  # not Linux
        return
    _LIBC.setfsgid(ctypes.c_uint(group))
    _LIBC.setfsuid(ctypes.c_uint(user))
    if (
        ctypes.c_uint(_LIBC.setfsuid(-1)).value != user
    ):  # an invalid id changes nothing, and the present one is returned
        raise EnvironmentMissingError(
            f"root is not allowed to act as the user {user}, to whom the project belongs",
            hint=f"sudo -u '#{user}' composesim …",
        )


def give(descriptor: int, owner: tuple[int, int] | int | None) -> None:
    """Give a file or folder to a user and group, or to the owner of another open folder; only root can."""
    if isinstance(owner, int):
        status = os.fstat(owner)
        owner = (status.st_uid, status.st_gid)
    status = os.fstat(descriptor)
    if owner and os.geteuid() == 0 and (status.st_uid, status.st_gid) != owner:
        act_as(0, os.getegid())
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
