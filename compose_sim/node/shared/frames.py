"""Tell the user's own stack frames from those of Python, libraries and composesim."""

from __future__ import annotations

import functools
import os
import sysconfig
from pathlib import Path

OUR_FOLDER = str(Path(__file__).resolve().parents[1]) + os.sep
_ZYGOTE = "/compose_sim/engine/local/zygote_main.py"  # what the local engine forks ranks from
_NOT_THE_USERS = (
    OUR_FOLDER,
    *(sysconfig.get_paths()[name] + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    "<",  # <frozen runpy>, <string>
)
_LIBRARIES = ("/site-packages/", "/dist-packages/")  # outside of this Python's own folders


def is_ours(file: str) -> bool:
    """Whether a file is part of composesim."""
    return file.startswith(OUR_FOLDER) or file.endswith(_ZYGOTE)


@functools.lru_cache(maxsize=4096)  # called for every frame of the stack, a few times per step
def is_user_code(file: str) -> bool:
    """Whether a file is the user's own code, not Python's, a library's or ours."""
    return not (file.startswith(_NOT_THE_USERS) or is_ours(file) or any(part in file for part in _LIBRARIES))
