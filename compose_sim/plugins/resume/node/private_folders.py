"""Keep the user's checkpoints out of the runs of `check --resume`, also those outside of the project."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

_NAMESPACE, _USERS = 0x00020000, 0x10000000  # CLONE_NEWNS and CLONE_NEWUSER of linux/sched.h
_BIND, _RECURSIVE, _PRIVATE = 1 << 12, 1 << 14, 1 << 18  # MS_BIND, MS_REC and MS_PRIVATE of linux/mount.h
_WRITING = os.O_WRONLY | os.O_RDWR
# Audit event -> how many paths it has
_CHANGES = {"os.rename": 2, "os.remove": 1, "os.truncate": 1, "shutil.rmtree": 1}
_CACHES = ("/.cache/", "/.triton/", "/torchinductor_", "/site-packages/", "/__pycache__/", "/dev/", "/proc/")
_MAX_FILES = 10_000  # that are looked at in a folder


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


def guard(roots: Sequence[str], suffixes: Sequence[str], refusal: str) -> Callable[[str], None]:
    """
    End the rank before Python changes what is outside of these folders and older than the run: a checkpoint, or a file beside one.

    Return a function that does so for a path, for savers that open their files in other languages.
    """
    private = tuple(os.path.realpath(each).rstrip(os.sep) + os.sep for each in roots)
    endings, began = tuple(suffixes), time.time()
    known: dict[tuple[str, bool], bool] = {}  # folder, and also below it -> whether it held a checkpoint

    def is_old_checkpoint(path: str) -> bool:
        return path.endswith(endings) and _is_older(path, began)

    def holds_some(folder: str, *, below: bool) -> bool:
        if (folder, below) not in known:
            known[folder, below] = any(map(is_old_checkpoint, _files_in(folder, below=below)))
        return known[folder, below]

    def refuse(path: str) -> None:
        real = os.path.realpath(path)
        if real.startswith(private) or any(each in real for each in _CACHES):
            return
        folder = real if os.path.isdir(real) else os.path.dirname(real)  # noqa: PTH112, PTH120 - for each file
        is_folder = folder == real
        if is_old_checkpoint(real) or ((is_folder or _is_older(real, began)) and holds_some(folder, below=is_folder)):
            raise SystemExit(
                f"{refusal}: '{real}' was there before, and the script would change it. Try: --checkpoint-folder {folder}"
            )

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        paths: tuple[Any, ...] = ()
        if event == "open" and arguments[2] & _WRITING:
            paths = arguments[:1]
        elif event in _CHANGES:
            paths = arguments[: _CHANGES[event]]
        for path in paths:
            if isinstance(path, (str, bytes, os.PathLike)):
                refuse(os.fsdecode(path))

    sys.addaudithook(audit)
    return refuse


def _files_in(folder: str, *, below: bool) -> Iterator[str]:
    """Yield the first files in a folder, and in those below."""
    folders = islice(os.walk(folder), None if below else 1)
    found = (os.path.join(at, name) for at, _, names in folders for name in names)  # noqa: PTH118 - many files
    return islice(found, _MAX_FILES)


def _is_older(path: str, time_s: float) -> bool:
    try:
        return os.stat(path).st_mtime < time_s  # noqa: PTH116 - for each file
    except OSError:
        return False
