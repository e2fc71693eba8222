"""Delete a folder, however deeply a script has nested what it contains, with a few file descriptors and no recursion."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

_SAFE = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


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
    folder = os.open(name, _SAFE, dir_fd=above)
    try:
        yield folder
    finally:
        os.close(folder)
