"""Corrupt the newest checkpoint of the run, and keep the original bytes to restore them."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from collections.abc import Generator, Iterator
from pathlib import Path

from ...shared.fault_note import CommandName
from ...shared.regular_files import open_regular, read_regular
from .command import Command, CommandHandler, ExecutionError, NodeContext

_UNFINISHED = (".tmp", ".part", ".partial", ".temp")
_MAX_CHANGED = 4096
_MAX_OF_NOTE = 1 << 16
_MAX_FILES, _MAX_LEVELS = 100_000, 16  # to look at, because the script decides how many there are
_REPLACE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC


def _corrupt(command: Command, node: NodeContext) -> Generator[float, None, None]:
    """Cut off the second half (`how` is `truncate`), as an interrupted write does, or invert bytes in the middle (`flip`)."""
    yield from ()
    file = _newest(Path(os.environ["COMPOSESIM_SHARED"]))
    original, note = _backup(node, command)
    with _opened(file, os.O_RDWR) as checkpoint, _opened(original, _REPLACE) as kept:
        size, truncate = os.fstat(checkpoint).st_size, command.values.get("how", "truncate") == "truncate"
        start = size // 2
        end = size if truncate else min(size, start + _MAX_CHANGED)
        _copy(checkpoint, kept, start, end)
        if truncate:
            os.ftruncate(checkpoint, start)
        else:
            changed = os.pread(checkpoint, end - start, start)
            os.pwrite(checkpoint, bytes(byte ^ 0xFF for byte in changed), start)
        values = {"file": str(file), "version": _version(checkpoint), "start": start, "size": size}
    with _opened(note, _REPLACE) as noted:
        os.write(noted, json.dumps(values).encode())


def _restore(command: Command, node: NodeContext) -> None:
    """Restore the bytes, unless the script has written the checkpoint again in the meantime."""
    original, note = _backup(node, command)
    with contextlib.suppress(FileNotFoundError):
        noted = json.loads(read_regular(note, _MAX_OF_NOTE))
        with _opened(Path(noted["file"]), os.O_RDWR) as checkpoint, _opened(original, os.O_RDONLY) as kept:
            if _version(checkpoint) == noted["version"]:
                os.ftruncate(checkpoint, noted["size"])
                _copy(kept, checkpoint, noted["start"], os.fstat(kept).st_size)
    for path in (original, note):
        with contextlib.suppress(FileNotFoundError):
            path.unlink()


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    descriptor = open_regular(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _copy(source: int, target: int, start: int, end: int) -> None:
    """Copy bytes to the same place of another file, without the holes of a sparse file."""
    while start < end:
        try:
            start = os.lseek(source, start, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole follows
                return
            raise
        hole = min(os.lseek(source, start, os.SEEK_HOLE), end)
        while start < hole:
            data = os.pread(source, min(hole - start, 1 << 20), start)
            if not data:  # the script has cut the file off meanwhile
                return
            start += os.pwrite(target, data, start)


def _version(file: int) -> list[int]:
    status = os.fstat(file)
    return [status.st_ino, status.st_size, status.st_mtime_ns]


def _backup(node: NodeContext, command: Command) -> tuple[Path, Path]:
    """Return the files for the original bytes and for where they belong: in the run folder, out of the script's sight."""
    folder = node.events.folder / "debug"
    return folder / f"{command.id}.kept", folder / f"{command.id}.json"


def _newest(shared: Path) -> Path:
    files = list(_checkpoints(shared))
    if not files:
        raise ExecutionError(f"there is no checkpoint in {shared} yet")
    return max(files)[1]


def _checkpoints(shared: Path) -> Iterator[tuple[int, Path]]:
    """Yield times and paths of complete, non-empty files, without those that are still written under a temporary name."""
    looked = 0
    for folder, folders, names in os.walk(shared):
        looked += len(names) + len(folders)
        if looked > _MAX_FILES:
            raise ExecutionError(
                f"{shared} contains more than {_MAX_FILES:,} files, too many to find the newest checkpoint"
            )
        is_deep = len(Path(folder).parts) - len(shared.parts) >= _MAX_LEVELS
        folders[:] = [] if is_deep else [name for name in folders if not name.startswith(".")]
        for name in names:
            if name.startswith(".") or name.endswith(_UNFINISHED):
                continue
            with contextlib.suppress(FileNotFoundError):  # the script has removed it
                status = os.lstat(file := Path(folder, name))
                if stat.S_ISREG(status.st_mode) and status.st_size > 1:
                    yield status.st_mtime_ns, file


HANDLERS: dict[CommandName, CommandHandler] = {
    "corrupt_checkpoint": CommandHandler(_corrupt, _restore, outlives_node=True)
}
