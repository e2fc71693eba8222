"""Claim the name of a run, so that no other project of this user starts one: engines find and remove the nodes of a run by name."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from compose_sim.errors import SpecError


@contextmanager
def claimed_name(engine: str, run: str) -> Iterator[None]:
    """
    Hold the name of a run on an engine.

    Raises SpecError if another process of this user holds it. Without a folder that only this user can write, nothing is claimed.
    """
    folder = _folder()
    if folder is None:  # nothing can be claimed, and the engine refuses most names that are taken
        yield
        return
    path = folder / f"{engine}.{run}"
    claim = _claim(path)
    if claim is None:
        raise SpecError(f"a run named '{run}' is under way in another project", hint="choose another --name")
    try:
        yield
    finally:
        with suppress(OSError):
            if os.path.samestat(os.fstat(claim), path.lstat()):
                path.unlink()  # while it is locked: whoever waits for the lock then looks again
        os.close(claim)


def _claim(path: Path) -> int | None:
    """Create and lock a file, and return a descriptor; None if another process has locked it."""
    while True:
        claim = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(claim)
            return None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(claim), path.lstat()):
                return claim
        os.close(claim)


def _folder() -> Path | None:
    """Return a folder of this user on this machine, which no other user can write; None if there is none."""
    user = os.geteuid()
    of_session = f"/run/user/{user}"  # made at login
    for name in (of_session, f"/tmp/composesim-{user}", "~/.cache/composesim/names"):
        with suppress(OSError, RuntimeError):  # such as no home
            folder = Path(name).expanduser()
            if name != of_session:
                folder.mkdir(0o700, parents=True, exist_ok=True)
            status = folder.lstat()
            is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == user and not status.st_mode & 0o022
            if is_ours and os.access(folder, os.W_OK):
                return folder
    return None
