"""Mount a folder so that the files of root in it belong to another user: an idmapped mount, which changes nothing on the disk.

Whoever runs as that user owns what root owns, in this mount only, and what they write there belongs to root on the disk.
"""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from compose_sim.core.plan.model import STAND_IN

_LIBC = ctypes.CDLL(None, use_errno=True)
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442  # the same on these machines
_MACHINES = ("x86_64", "aarch64")
_HERE, _CLONE, _RECURSIVE, _EMPTY_PATH, _FROM_EMPTY_PATH = -100, 0x1, 0x8000, 0x1000, 0x4
_NOSUID, _NODEV, _IDMAP, _PRIVATE = 0x2, 0x4, 0x100000, 1 << 18  # attributes, and a kind of propagation
_DETACH, _NOFOLLOW = 0x2, 0x8
# Root on the disk is the stand-in in the mount, and the reverse, so that each user exists there; others stay who they are.
_MAP = f"0 {STAND_IN} 1\n1 1 {STAND_IN - 1}\n{STAND_IN} 0 1\n"


def why_unmappable(folder: Path) -> str:
    """Try it on a folder, and return why the kernel or the file system cannot do it; "" if they can. Nothing stays mounted."""
    if os.uname().machine not in _MACHINES:
        return f"not on {os.uname().machine}"
    try:
        with _mapped(folder):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def mount_mapped(source: Path, target: Path) -> None:
    """Mount a file or folder on another, with root's files mapped; raise OSError if that is impossible."""
    with _mapped(source) as tree:
        _attach(tree, target)


def mount_unmapped(source: Path, target: Path) -> None:
    """Mount a file or folder on another as it is."""
    with _copied(source) as tree:
        _attach(tree, target)


def unmount(target: Path) -> bool:
    """Remove the uppermost mount from a path, also while it is in use; return whether there was one."""
    return bool(_LIBC.umount2(os.fsencode(target), _DETACH | _NOFOLLOW) == 0)


@contextmanager
def _mapped(source: Path) -> Iterator[int]:
    """Open a copy of the mounts below a path that is attached nowhere, with root's files mapped."""
    with _copied(source) as tree:
        attributes = struct.pack("4Q", _NOSUID | _NODEV | _IDMAP, 0, _PRIVATE, _user_namespace())
        _call(_MOUNT_SETATTR, tree, b"", _EMPTY_PATH | _RECURSIVE, attributes, len(attributes))
        yield tree


@contextmanager
def _copied(source: Path) -> Iterator[int]:
    tree = _call(_OPEN_TREE, _HERE, os.fsencode(source), _CLONE | _RECURSIVE | os.O_CLOEXEC)
    try:
        yield tree
    finally:
        os.close(tree)


def _attach(tree: int, target: Path) -> None:
    _call(_MOVE_MOUNT, tree, b"", _HERE, os.fsencode(target), _FROM_EMPTY_PATH)


@cache
def _user_namespace() -> int:
    """Open a user namespace with our map, the same for all mounts; no process stays in it."""
    pipe = subprocess.PIPE
    with subprocess.Popen(["unshare", "--user", "cat"], stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0) as inside:
        assert inside.stdin is not None
        assert inside.stdout is not None
        with suppress(BrokenPipeError):
            inside.stdin.write(b"\n")
        if not inside.stdout.read(1):  # it answers from inside of the namespace
            raise OSError(0, "this process may not make user namespaces")
        process = Path(f"/proc/{inside.pid}")
        for name in ("uid_map", "gid_map"):
            (process / name).write_text(_MAP)
        return os.open(process / "ns" / "user", os.O_RDONLY | os.O_CLOEXEC)


def _call(number: int, *arguments: int | bytes) -> int:
    words = [ctypes.c_long(each) if isinstance(each, int) else ctypes.c_char_p(each) for each in arguments]
    result = int(_LIBC.syscall(ctypes.c_long(number), *words))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
