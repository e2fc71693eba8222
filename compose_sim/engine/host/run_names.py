"""Claim the name of a run, so that no other project of this user starts one: engines find and remove the nodes of a run by name."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from compose_sim.errors import EngineError, SpecError


@contextmanager
def claimed_name(engine: str, run: str) -> Iterator[None]:
    """
    Hold the name of a run on an engine.

    Raises SpecError if another process of this user holds it, and EngineError if there is no safe folder for claims.
    """
    path = _folder() / f"{engine}.{run}"
    claim = _claim(path)
    if claim is None:
        raise SpecError(f"a run named '{run}' is under way in another project", hint="choose another --name")
    try:
        yield
    finally:
        with suppress(FileNotFoundError):
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


def _folder() -> Path:
    """Return a folder of this user on this machine, which no other user can write."""
    folder = Path(f"/run/user/{os.geteuid()}")
    if not folder.is_dir():
        folder = Path(f"/tmp/composesim-{os.geteuid()}")
        with suppress(FileExistsError):
            folder.mkdir(0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise EngineError(f"another user can write '{folder}'", hint=f"ls -ld {folder}")
    return folder
