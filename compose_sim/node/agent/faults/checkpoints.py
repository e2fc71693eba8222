"""Corrupt the newest checkpoint of the run, and keep the original bytes to restore them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Generator, Iterator
from pathlib import Path

from .command import Command, CommandHandler, ExecutionError, NodeContext

_UNFINISHED = (".tmp", ".part", ".partial", ".temp")
_MOST_CHANGED = 4096


def _corrupt(command: Command, node: NodeContext) -> Generator[float, None, None]:
    """Cut off the second half (`how` is `truncate`), as an interrupted write does, or invert bytes in the middle (`flip`)."""
    yield from ()
    file = _newest(Path(os.environ["COMPOSESIM_SHARED"]))
    size, truncate = file.stat().st_size, command.values.get("how", "truncate") == "truncate"
    start = size // 2
    end = size if truncate else min(size, start + _MOST_CHANGED)
    original, note = _backup(node, command)
    with file.open("r+b") as checkpoint:
        checkpoint.seek(start)
        if truncate:
            with original.open("wb") as rest:
                shutil.copyfileobj(checkpoint, rest, 1 << 20)
            checkpoint.truncate(start)
        else:
            changed = checkpoint.read(end - start)
            original.write_bytes(changed)
            checkpoint.seek(start)
            checkpoint.write(bytes(byte ^ 0xFF for byte in changed))
    note.write_text(json.dumps({"file": str(file), "version": _version(file), "start": start}))


def _restore(command: Command, node: NodeContext) -> None:
    """Restore the bytes, unless the script has written the checkpoint again in the meantime."""
    original, note = _backup(node, command)
    with contextlib.suppress(FileNotFoundError):
        noted = json.loads(note.read_text())
        file = Path(noted["file"])
        if _version(file) == noted["version"]:
            with file.open("r+b") as checkpoint, original.open("rb") as rest:
                checkpoint.seek(noted["start"])
                shutil.copyfileobj(rest, checkpoint, 1 << 20)
    for path in (original, note):
        with contextlib.suppress(FileNotFoundError):
            path.unlink()


def _version(file: Path) -> list[int]:
    stat = file.stat()
    return [stat.st_ino, stat.st_size, stat.st_mtime_ns]


def _backup(node: NodeContext, command: Command) -> tuple[Path, Path]:
    """Return the files for the original bytes and for where they belong: in the run folder, out of the script's sight."""
    folder = node.events.folder / "debug"
    return folder / f"{command.id}.kept", folder / f"{command.id}.json"


def _newest(shared: Path) -> Path:
    files = [(file.stat().st_mtime_ns, file) for file in _checkpoints(shared)]
    if not files:
        raise ExecutionError(f"there is no checkpoint in {shared} yet")
    return max(files)[1]


def _checkpoints(shared: Path) -> Iterator[Path]:
    """Yield complete, non-empty files, without those that are still being written under a temporary name."""
    for folder, folders, names in os.walk(shared):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            file = Path(folder, name)
            is_whole = not name.startswith(".") and not name.endswith(_UNFINISHED)
            if is_whole and file.is_file() and not file.is_symlink() and file.stat().st_size > 1:
                yield file


HANDLERS = {"corrupt_checkpoint": CommandHandler(_corrupt, _restore, outlives_node=True)}
