"""Read files that a project contains, and keep them as they are."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from compose_sim.core.text import format_bytes
from compose_sim.engine.project_owner import check_project, check_user
from compose_sim.engine.run_folder.safe_files import SafeFolder, kind_of
from compose_sim.errors import SpecError

MAX_BYTES = 4 << 20  # of a script
_MAX_SETTINGS = 512 << 10
_MAX_KEPT = 256 << 20  # of all files together


def read_project_file(path: Path, folder: Path, *, size: int = MAX_BYTES, is_settings: bool = False) -> bytes:
    """
    Return what a regular file of the project in `folder` contains. Links are followed.

    Raises SpecError if this user may not read it, if it belongs to a user whom root does not trust, if it is of another kind or larger,
    or if it contains settings that any user could have put there; OSError if there is none.
    """
    check_project(folder, path)
    try:
        # Without O_NONBLOCK, opening a pipe would block.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except PermissionError as error:
        raise SpecError(f"'{path}' cannot be read: {error}", hint=f"file {path}") from None
    try:
        status = os.fstat(descriptor)
        check_user(status.st_uid, path)  # again: the file may have been replaced
        if not stat.S_ISREG(status.st_mode):
            raise SpecError(f"'{path}' is {kind_of(status)}, not a regular file", hint=f"ls -ldL {path}")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            content = file.read(size + 1) if status.st_size <= size else b""
    finally:
        os.close(descriptor)
    if is_settings and folder.stat().st_mode & stat.S_IWOTH and status.st_uid not in _trusted(folder):
        raise SpecError(
            f"'{path}' belongs to another user, and anybody can write to '{folder}'",
            hint=f"ls -l {path}, then delete it, or work in another folder",
        )
    if status.st_size > size or len(content) > size:
        raise SpecError(f"'{path}' is larger than {format_bytes(size)}", hint=f"ls -lL {path}")
    return content


def read_settings(path: Path, folder: Path) -> str:
    """Return the UTF-8 text of a file of settings as `read_project_file` reads it; raises SpecError if it is not text."""
    try:
        return read_project_file(path, folder, size=_MAX_SETTINGS, is_settings=True).decode("utf-8")
    except UnicodeDecodeError as error:
        raise SpecError(f"'{path}' cannot be read: {error}", hint=f"file {path}") from None


@contextmanager
def kept(paths: Iterable[str], project: Path) -> Iterator[None]:
    """
    Put these files back as they are now, if they have changed when the context ends.

    Those are left alone that are outside of the project or links, that cannot be read, or that would take too much memory.
    """
    left, project = _MAX_KEPT, project.resolve()
    with ExitStack() as stack:  # puts all back, even if one cannot be written
        for path in map(Path, paths):
            with suppress(OSError, SpecError, ValueError):
                name, status = str(path.relative_to(project)), path.lstat()
                if stat.S_ISREG(status.st_mode) and status.st_size <= left:
                    content = read_project_file(path, project, size=left)
                    stack.callback(_put_back, name, content, status, project)
                    left -= status.st_size
        yield


def _put_back(name: str, content: bytes, before: os.stat_result, project: Path) -> None:
    path = project / name
    with suppress(FileNotFoundError):
        now = path.lstat()
        if (now.st_ino, now.st_mtime_ns, now.st_size) == (before.st_ino, before.st_mtime_ns, before.st_size):
            return
    SafeFolder(project).replace(name, content, mode=stat.S_IMODE(before.st_mode))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    if os.geteuid() == 0:
        os.chown(path, before.st_uid, before.st_gid, follow_symlinks=False)


def _trusted(folder: Path) -> set[int]:
    return {0, os.geteuid(), folder.stat().st_uid}
