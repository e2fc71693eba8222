"""Access files below `.composesim`, in which the code of nodes and other users can plant links, pipes and folders.

A path is opened one component after another, each relative to the folder above, and never through a symbolic link. Only
regular files are read or written. Folders and files must belong to the user of the project, or to root.

If nodes run as another user than the owner, they read through the group of a folder that has the set-group-id bit.

The folder that holds `.composesim` is trusted, because the user chose it, and so is a folder elsewhere, such as one of `render`.
"""

from __future__ import annotations

import errno
import json
import os
import pwd
import secrets
import stat
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from compose_sim.core.plan.model import HIDDEN
from compose_sim.engine.project_owner import is_trusted
from compose_sim.errors import SpecError

_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_folder(name: str, above: int) -> None:
    """Delete a folder in the open folder `above`. No link is followed, even if one replaces a folder meanwhile."""
    with _opened(name, above) as top:
        while below := _remove_files(top):
            for each in below:
                with _opened(each, top) as folder:
                    for inner in _remove_files(folder):
                        _remove_or_move(inner, folder, top)
                os.rmdir(each, dir_fd=top)
    os.rmdir(name, dir_fd=above)


def _remove_or_move(name: str, folder: int, top: int) -> None:
    """Delete a folder if it is empty, or move it up to `top`, where it is deleted later."""
    try:
        os.rmdir(name, dir_fd=folder)
    except OSError:
        os.rename(name, secrets.token_hex(16), src_dir_fd=folder, dst_dir_fd=top)


def _remove_files(folder: int) -> list[str]:
    """Delete the files and links in an open folder, and return the names of the folders in it."""
    with os.scandir(folder) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in found:
        if not is_folder:
            os.unlink(name, dir_fd=folder)
    return [name for name, is_folder in found if is_folder]


@contextmanager
def _opened(name: str, above: int) -> Iterator[int]:
    folder = os.open(name, _OPEN_FOLDER, dir_fd=above)
    try:
        yield folder
    finally:
        os.close(folder)


_SHARED = stat.S_ISGID | stat.S_IRGRP | stat.S_IXGRP


def give(descriptor: int, owner: tuple[int, int] | None) -> None:
    """Give a file or folder to a user and group, if this process is root."""
    status = os.fstat(descriptor)
    if owner and os.geteuid() == 0 and (status.st_uid, status.st_gid) != owner:
        os.fchown(descriptor, *owner)


def share(descriptor: int) -> None:
    """Let the group read a file, or all that will be made in a folder."""
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


MAX_BYTES = 64 << 20  # of a file that is read as a whole
# The Docker daemon may be neither root nor the owner on the file system, and must get through to the folders that nodes mount.
PASSABLE, PRIVATE = 0o711, 0o700
_SAFE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # without O_NONBLOCK, opening a pipe would block
_PATH_ONLY = getattr(os, "O_PATH", os.O_RDONLY)


class SafeFolder:
    """A folder that need not exist yet. Names of files and folders in it may have several components, such as `logs/a.log`."""

    def __init__(self, path: Path) -> None:
        """Take any path; everything from the last `.composesim` on is opened safely."""
        parts = path.parts
        self._is_hidden = HIDDEN in parts
        trusted = len(parts) - 1 - parts[::-1].index(HIDDEN) if self._is_hidden else len(parts)
        self.path, self._path = path, str(path)  # path objects would take most of the time of a poll
        self._base, self._below = str(Path(*parts[:trusted])), "/".join(parts[trusted:])

    @contextmanager
    def opened(self, name: str = "", *, create: int | None = None) -> Iterator[int]:
        """Open a folder inside the context; make it with mode `create` if it does not exist."""
        parts = self._parts(name)
        modes = None if create is None else [*[self._folder_mode] * (len(parts) - 1), create]
        with self._descent(make=create is not None, is_listed=not parts) as descent:
            folder = descent.go(parts, modes)
            with absolute(descent.path):
                yield folder

    def make_folder(self, name: str, owner: tuple[int, int] | None = None, *, private: bool = False) -> None:
        """Make a folder unless it exists. Below `.composesim`, only the owner can enter; only root can make it for another user."""
        self.make_folders([name], owner, private={name} if private else ())

    def make_folders(
        self, names: Iterable[str], owner: tuple[int, int] | None = None, *, private: Container[str] = ()
    ) -> None:
        """Do what `make_folder` does, for folders that are in order: what several have above them is opened only once."""
        with self._descent(make=True) as descent:
            for name in names:
                parts = self._parts(name)
                mode = PRIVATE if name in private or self._is_hidden else self._folder_mode
                give(descent.go(parts, [*[self._folder_mode] * (len(parts) - 1), mode]), owner)

    def share_folder(self, name: str, reader: tuple[int, int], *, private: bool = False) -> None:
        """Make a folder in which another user can read what this process writes, if root runs this process."""
        with self.opened(name, create=PRIVATE if private else self._folder_mode) as folder:
            owner = os.fstat(folder).st_uid
            if os.geteuid() == 0 and owner != reader[0]:
                give(folder, (owner, reader[1]))
                share(folder)

    def exists(self) -> bool:
        """Return whether there is such a folder, and it is safe."""
        try:
            with self.opened():
                return True
        except (OSError, UnsafeFileError):
            return False

    def status(self, name: str) -> os.stat_result | None:
        """Return the status of a regular file; None if there is none, or if the folder is not safe."""
        try:
            with self._parent(name) as (folder, file):
                status = os.stat(file, dir_fd=folder, follow_symlinks=False)
        except (OSError, UnsafeFileError):
            return None
        return status if stat.S_ISREG(status.st_mode) else None

    def files(self, name: str = "", suffix: str = "") -> list[str]:
        """Return the names of the regular files in a folder, sorted; none if there is no such folder."""
        return self._names(name, lambda entry: entry.name.endswith(suffix) and entry.is_file(follow_symlinks=False))

    def folders(self, name: str = "") -> list[str]:
        """Return the names of the folders in a folder, sorted; none if there is no such folder."""
        return self._names(name, lambda entry: entry.is_dir(follow_symlinks=False))

    def open_file(self, name: str, flags: int = os.O_RDONLY) -> int:
        """Open a regular file, and return the descriptor."""
        with self._parent(name, create=bool(flags & os.O_CREAT)) as (folder, file):
            path = self.path / name
            try:
                descriptor = os.open(file, flags | _SAFE, self._file_mode, dir_fd=folder)
            except OSError as error:
                if error.errno not in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
                    raise
                refuse_kind(path, os.stat(file, dir_fd=folder, follow_symlinks=False), stat.S_IFREG)
            try:
                self._check_file(path, os.fstat(descriptor), os.fstat(folder))
            except UnsafeFileError:
                os.close(descriptor)
                raise
            return descriptor

    def read_bytes(self, name: str, *, offset: int = 0, size: int = MAX_BYTES) -> bytes:
        """Return what a file contains from an offset on, up to a size; -1 for all of it."""
        with os.fdopen(self.open_file(name), "rb") as file:
            file.seek(offset)
            return file.read(size)

    def read_text(self, name: str) -> str:
        """Return what a file contains, up to MAX_BYTES."""
        return self.read_bytes(name).decode("utf-8", "replace")

    def read_json(self, name: str) -> Any:
        """Return the JSON value in a file; raise ValueError if there is none."""
        try:
            return json.loads(self.read_text(name))
        except RecursionError:
            raise ValueError("it is nested too deeply") from None

    def append(self, name: str, text: str) -> None:
        """Append text to a file with one write; make the file if it does not exist. Leave no part of it on a full disk."""
        descriptor, data = self.open_file(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT), text.encode()
        try:
            if (written := os.write(descriptor, data)) < len(data):
                os.ftruncate(descriptor, os.lseek(descriptor, 0, os.SEEK_CUR) - written)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path / name))
        finally:
            os.close(descriptor)

    def replace(self, name: str, content: str | bytes, *, mode: int | None = None) -> None:
        """Write a whole file or nothing, by renaming a temporary file; make the folders above it."""
        with self._parent(name, create=True) as (folder, file):
            temporary = f".{file}.{secrets.token_hex(4)}"
            try:
                with os.fdopen(self._create(temporary, folder, mode), "wb") as opened:
                    opened.write(content.encode() if isinstance(content, str) else content)
                os.rename(temporary, file, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=folder)
                raise

    def copy_tree(self, source: Path, name: str, *, leave_out: Collection[str] = ()) -> None:
        """Copy the content of a folder into a new or empty one, with the times of the files."""
        for folder, below, files in os.walk(source):
            below[:] = [each for each in below if each not in leave_out]
            below_name = "/".join((name, *Path(folder).relative_to(source).parts))
            with self.opened(below_name, create=self._folder_mode) as target:
                for origin in (Path(folder, file) for file in files):
                    status = origin.stat()
                    with os.fdopen(self._create(origin.name, target), "wb") as copy:
                        copy.write(origin.read_bytes())
                        copy.flush()
                        os.utime(copy.fileno(), ns=(status.st_atime_ns, status.st_mtime_ns))

    def remove(self, name: str) -> None:
        """Delete a file or a link, if it exists."""
        with suppress(FileNotFoundError), self._parent(name) as (folder, file):
            os.unlink(file, dir_fd=folder)

    def remove_tree(self, name: str) -> None:
        """Delete the file or folder of this name, following no links."""
        with suppress(FileNotFoundError), self._parent(name) as (folder, file):
            if not stat.S_ISDIR(os.stat(file, dir_fd=folder, follow_symlinks=False).st_mode):
                os.unlink(file, dir_fd=folder)
                return
            remove_folder(file, folder)

    def _check_file(self, path: Path, status: os.stat_result, folder: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode):
            refuse_kind(path, status, stat.S_IFREG)
        if self._is_hidden and status.st_uid not in (0, os.geteuid(), folder.st_uid):
            refuse_owner(path, status.st_uid)
        if self._is_hidden and os.geteuid() == 0 and status.st_uid != folder.st_uid and status.st_nlink > 1:
            raise UnsafeFileError(f"'{path}' is a hard link to a file of root", hint=f"ls -li {path}, then delete it")

    def _parts(self, name: str) -> list[str]:
        return [*_components(self._below, self._path), *_components(name, self._path, name)]

    def _descent(self, *, make: bool, is_listed: bool = False) -> Descent:
        flags = os.O_DIRECTORY | os.O_CLOEXEC | (os.O_RDONLY if is_listed else _PATH_ONLY)
        try:
            base = os.open(self._base, flags)
        except FileNotFoundError:
            if not make or self._is_hidden:
                raise
            Path(self._base).mkdir(parents=True, exist_ok=True)
            base = os.open(self._base, flags)
        return Descent(base, self._base, checks=self._is_hidden)

    @property
    def _folder_mode(self) -> int:
        return PASSABLE if self._is_hidden else 0o777

    @property
    def _file_mode(self) -> int:
        return 0o600 if self._is_hidden else 0o644

    @contextmanager
    def _parent(self, name: str, *, create: bool = False) -> Iterator[tuple[int, str]]:
        """Open the folder of a file; return it with the name of the file in it."""
        parent, _, file = name.rpartition("/")
        with self.opened(parent, create=self._folder_mode if create else None) as folder:
            _components(file, self._path, name)
            yield folder, file

    def _create(self, name: str, folder: int, mode: int | None = None) -> int:
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE, 0o600, dir_fd=folder)
        os.fchmod(descriptor, self._file_mode if mode is None else mode)
        if is_shared(folder):
            share(descriptor)
        return descriptor

    def _names(self, name: str, wanted: Callable[[os.DirEntry[str]], bool]) -> list[str]:
        with suppress(FileNotFoundError), self.opened(name) as folder, os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if wanted(entry))
        return []


def write_file(path: Path, content: str | bytes, *, mode: int = 0o644) -> None:
    """Write a whole file or nothing, at any path that the user wants."""
    SafeFolder(path.parent).replace(path.name, content, mode=mode)


def _components(name: str, folder: str, below: str = "") -> list[str]:
    parts = name.split("/") if name else []
    if {"", ".", ".."}.intersection(parts):
        raise UnsafeFileError(f"'{Path(folder, below)}' is not a path below '{HIDDEN}'", hint="composesim ps --all")
    return parts
