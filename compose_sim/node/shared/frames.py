"""Distinguish the user's stack frames from those of Python, libraries and composesim."""

from __future__ import annotations

import functools
import os
import sysconfig
from pathlib import Path

OUR_FOLDER = str(Path(__file__).resolve().parents[1]) + os.sep
_NOT_THE_USERS = (
    OUR_FOLDER,
    *(sysconfig.get_paths()[name] + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    "<",  # <frozen runpy>, <string>
)
_LIBRARIES = ("/site-packages/", "/dist-packages/")  # of other installations


def is_ours(file: str) -> bool:
    """Return whether a file is part of composesim."""
    return file.startswith(OUR_FOLDER)


@functools.lru_cache(maxsize=4096)  # called for every frame of the stack, a few times per step
def is_user_code(file: str) -> bool:
    """Return whether a file is the user's code, and not part of Python, a library or composesim."""
    return not (file.startswith(_NOT_THE_USERS) or any(part in file for part in _LIBRARIES))
