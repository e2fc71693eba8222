"""Open files in a folder that ranks can write to: regular files only, through no link, never waiting for a pipe."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

# Without O_NONBLOCK, opening a pipe would wait for its other end.
_SAFELY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def open_regular(path: Path, flags: int) -> int:
    """Return a descriptor of a regular file, which is created with mode 0644 if `flags` ask for it; raises OSError."""
    descriptor = os.open(path, flags | _SAFELY, 0o644)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "Not a regular file", str(path))


def open_to_append(path: Path) -> int:
    """Return a descriptor that appends to a regular file, which is created if it is missing; raises OSError."""
    return open_regular(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def read_regular(path: Path, most: int, *, offset: int = 0) -> bytes:
    """Return up to `most` bytes of a regular file; raises OSError."""
    with os.fdopen(open_regular(path, os.O_RDONLY), "rb") as file:
        file.seek(offset)
        return file.read(most)
