"""How does the newest checkpoint come to be broken? Its bytes are cut off or changed, and what they were is kept for the heal."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Generator, Iterator
from pathlib import Path

from . import FailedError, Node, Order

OUTLIVES_NODE = True
_UNFINISHED = (".tmp", ".part", ".partial", ".temp")
_MOST_CHANGED = 4096


def do(order: Order, node: Node) -> Generator[float, None, None]:
    """`values`: how, `truncate` (half of the file is left, as by a write cut short) or `flip` (bytes in its middle are changed)."""
    yield from ()
    file = _newest(Path(os.environ["COMPOSESIM_SHARED"]))
    size, truncate = file.stat().st_size, order.values.get("how", "truncate") == "truncate"
    start = size // 2
    end = size if truncate else min(size, start + _MOST_CHANGED)
    kept, note = _kept(node, order)
    with file.open("r+b") as checkpoint:
        checkpoint.seek(start)
        if truncate:
            with kept.open("wb") as rest:
                shutil.copyfileobj(checkpoint, rest, 1 << 20)
            checkpoint.truncate(start)
        else:
            changed = checkpoint.read(end - start)
            kept.write_bytes(changed)
            checkpoint.seek(start)
            checkpoint.write(bytes(byte ^ 0xFF for byte in changed))
    after = file.stat()
    version = [after.st_ino, after.st_size, after.st_mtime_ns]
    note.write_text(json.dumps({"file": str(file), "version": version, "start": start}))


def undo(order: Order, node: Node) -> None:
    """Put the bytes back; where the script has written the checkpoint anew since, there is nothing to mend."""
    kept, note = _kept(node, order)
    try:
        told = json.loads(note.read_text())
        file = Path(told["file"])
        now = file.stat()
        if [now.st_ino, now.st_size, now.st_mtime_ns] == told["version"]:
            with file.open("r+b") as checkpoint, kept.open("rb") as rest:
                checkpoint.seek(told["start"])
                shutil.copyfileobj(rest, checkpoint, 1 << 20)
    except FileNotFoundError:
        pass
    for path in (kept, note):
        with contextlib.suppress(FileNotFoundError):
            path.unlink()


def _kept(node: Node, order: Order) -> tuple[Path, Path]:
    """Where the bytes go, and what says whose they are: on this machine's disk, out of the script's sight."""
    folder = node.events.folder / "debug"
    return folder / f"{order.id}.kept", folder / f"{order.id}.json"


def _newest(shared: Path) -> Path:
    files = [(file.stat().st_mtime_ns, file) for file in _checkpoints(shared)]
    if not files:
        raise FailedError(f"there is no checkpoint in {shared} yet")
    return max(files)[1]


def _checkpoints(shared: Path) -> Iterator[Path]:
    """Whole files that hold anything; not those that are being written under another name."""
    for folder, folders, names in os.walk(shared):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            file = Path(folder, name)
            is_whole = not name.startswith(".") and not name.endswith(_UNFINISHED)
            if is_whole and file.is_file() and not file.is_symlink() and file.stat().st_size > 1:
                yield file
