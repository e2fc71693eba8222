"""Keep the user's checkpoints out of the runs of `check --resume`, also those outside of the project."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

_NAMESPACE, _USERS = 0x00020000, 0x10000000  # CLONE_NEWNS and CLONE_NEWUSER of linux/sched.h
_BIND, _RECURSIVE, _PRIVATE = 1 << 12, 1 << 14, 1 << 18  # MS_BIND, MS_REC and MS_PRIVATE of linux/mount.h
_WRITING = os.O_WRONLY | os.O_RDWR


def replace_folders(folders: Mapping[str, str]) -> None:
    """
    Let this process, and those that it starts, see other folders in the place of some (path -> what it sees there).

    Raises OSError if the kernel does not allow that. Without root, the process may have one thread only.
    """
    user, group = os.geteuid(), os.getegid()
    if user:
        _call("unshare", ctypes.c_int(_USERS | _NAMESPACE))
        own = Path("/proc/self")
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            (own / name).write_text(text)
    else:
        _call("unshare", ctypes.c_int(_NAMESPACE))
    _mount("none", "/", _RECURSIVE | _PRIVATE)  # else all other processes would see them too
    for path, seen in folders.items():
        _mount(seen, path, _BIND)


def _mount(source: str, target: str, flags: int) -> None:
    _call("mount", os.fsencode(source), os.fsencode(target), None, ctypes.c_ulong(flags), None)


def _call(name: str, *values: Any) -> None:
    """Call a function of the C library; raise OSError if it fails."""
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*values):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def guard(roots: Sequence[str], suffixes: Sequence[str]) -> Callable[[str], None]:
    """
    End the rank before Python opens or replaces a checkpoint that is outside of these folders, and older than the run.

    Return a function that does so for a path, for savers that open their files in other languages.
    """
    private = tuple(os.path.realpath(each).rstrip(os.sep) + os.sep for each in roots)
    endings, began = tuple(suffixes), time.time()

    def refuse(path: str) -> None:
        real = os.path.realpath(path)
        if not real.startswith(private) and _is_older(real, began):
            folder = real if os.path.isdir(real) else os.path.dirname(real)  # noqa: PTH112, PTH120 - for each file
            raise SystemExit(
                f"composesim: '{real}' was there before this check, which would overwrite it. "
                f"Try: composesim check --resume --checkpoint-folder {folder} …"
            )

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        is_opened = event == "open" and arguments[2] & _WRITING
        path = arguments[0] if is_opened else arguments[1] if event == "os.rename" else None
        if isinstance(path, (str, bytes, os.PathLike)) and os.fsdecode(path).endswith(endings):
            refuse(os.fsdecode(path))

    sys.addaudithook(audit)
    return refuse


def _is_older(path: str, time_s: float) -> bool:
    """Return whether a file, or a folder with the metadata of a sharded checkpoint, is older than this."""
    try:
        file = os.path.join(path, ".metadata") if os.path.isdir(path) else path  # noqa: PTH112, PTH118 - for each file
        return os.stat(file).st_mtime < time_s  # noqa: PTH116 - as above
    except OSError:
        return False
