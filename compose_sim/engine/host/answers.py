"""Remember what a program answered until it is replaced, in a folder that only this user can read or write."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

_MAX_BYTES = 64 << 10


def remembered(name: str, files: Iterable[Path], ask: Callable[[], tuple[int, str]]) -> tuple[int, str]:
    """
    Return the exit status and the output that `ask` returns. It is called only if one of these files has changed since it succeeded.

    Nothing is remembered in a folder that belongs to, or can be written by, another user.
    """
    now = [[str(file), *_identity(file)] for file in files]
    folder = _folder()
    if folder and (kept := _read(folder / name)) and kept.get("files") == now and isinstance(kept.get("text"), str):
        return 0, kept["text"]
    status, text = ask()
    if folder and status == 0:
        with suppress(OSError):  # such as a full disk
            _write(folder / name, json.dumps({"files": now, "text": text}))
    return status, text


def home_folder(name: str) -> str:
    """Return the path of a folder in this user's home; it starts with ~ if the user has none."""
    return os.path.expanduser(f"~/{name}")  # noqa: PTH111 - Path.expanduser raises an error then


def _identity(file: Path) -> list[int]:
    """Return what changes when a file is replaced or written to; empty if there is none."""
    try:
        found = file.stat()
    except OSError:
        return []
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


def _folder() -> Path | None:
    """Return the folder of the answers, made if need be; None if it would not be ours alone."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or home_folder(".cache"))
    folder = home / "composesim" / "answers"
    try:
        if not home.is_absolute():
            return None
        if next(path for path in (home, *home.parents) if path.exists()).stat().st_uid != os.geteuid():
            return None  # root with the home of another user
        folder.mkdir(0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return None
    private = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
    return folder if private else None


def _read(file: Path) -> dict[str, Any]:
    try:
        with os.fdopen(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)) as opened:
            found = os.fstat(opened.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                return {}
            kept = json.loads(opened.read(_MAX_BYTES))
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) else {}


def _write(file: Path, text: str) -> None:
    """Replace the file in one step, so that no reader sees half of it."""
    partial = file.with_name(f"{file.name}.{os.getpid()}")
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w") as opened:
        opened.write(text)
    partial.replace(file)
