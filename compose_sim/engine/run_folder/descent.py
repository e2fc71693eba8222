"""Open a folder one component after another, each relative to the folder above, and never through a symbolic link."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from compose_sim.engine.run_folder.file_checks import check_owner, refuse_kind, refuse_owner
from compose_sim.engine.run_folder.file_owner import is_shared, share

_RUN_DEPTH = 3  # of a run's folder: .composesim/runs/NAME
_CHILD = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Descent:
    """
    The folders that lead from a trusted base to one below it, all open.

    With `checks`, they must belong to trusted users.
    """

    def __init__(self, base: int, path: str, *, checks: bool) -> None:
        """Begin at an open folder; `path` is its path."""
        self._opened, self._paths, self._parts = [base], [path], list[str]()
        self._checks = checks

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._opened:
            os.close(self._opened.pop())

    @property
    def folder(self) -> int:
        """The folder that was entered last."""
        return self._opened[-1]

    @property
    def path(self) -> str:
        """The path of that folder."""
        return self._paths[-1]

    def go(self, parts: Sequence[str], modes: Sequence[int] | None = None) -> int:
        """Go to the folder of this path below the base, and return it; make what does not exist, if there are `modes`."""
        differing = (number for number, pair in enumerate(zip(self._parts, parts, strict=False)) if pair[0] != pair[1])
        common = next(differing, min(len(self._parts), len(parts)))
        while len(self._parts) > common:
            self._parts.pop()
            self._paths.pop()
            os.close(self._opened.pop())
        for number in range(common, len(parts)):
            self._enter(parts[number], None if modes is None else modes[number])
        return self.folder

    def _enter(self, part: str, mode: int | None) -> None:
        above, base = self.folder, self._opened[0]
        made = mode is not None and self._make(part, mode)
        folder = self._open(part)
        self._opened.append(folder)
        self._paths.append(f"{self.path}/{part}")
        self._parts.append(part)
        if self._checks:
            check_owner(self.path, folder, above, base, in_run=len(self._parts) > _RUN_DEPTH)
        if made and is_shared(above):
            share(folder)

    def _make(self, name: str, mode: int) -> bool:
        """Make a folder in the present one; return False if there is something of that name."""
        try:
            with absolute(self.path):
                os.mkdir(name, mode, dir_fd=self.folder)
        except FileExistsError:
            return False
        return True

    def _open(self, name: str) -> int:
        """Open a folder in the present one."""
        try:
            with absolute(self.path):
                return os.open(name, _CHILD, dir_fd=self.folder)
        except OSError as error:
            path = Path(self.path, name)
            if error.errno not in (errno.ELOOP, errno.ENOTDIR, errno.EACCES):
                raise
            status = os.stat(name, dir_fd=self.folder, follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode):
                refuse_kind(path, status, stat.S_IFDIR)
            if os.geteuid() and status.st_uid not in (0, os.geteuid()):
                refuse_owner(path, status.st_uid)
            raise


@contextmanager
def absolute(folder: str) -> Iterator[None]:
    """Put the whole path of files into errors."""
    try:
        yield
    except OSError as error:
        if isinstance(error.filename, str | None):  # a write does not know the name
            error.filename = f"{folder}/{error.filename}" if error.filename else folder
        raise
