"""Parse the value of `--gpus`: `auto`, `all`, `none`, `emulated`, or numbers and UUIDs of GPUs."""

from __future__ import annotations

import re
from typing import Any

WORDS = ("auto", "none", "all", "emulated")
_GPU = re.compile(r"[0-9]+(:[0-9]+)?|(GPU|MIG)-[0-9A-Za-z/-]+")


def parse_gpus(value: Any) -> Any:
    """Return `0,1` for `[0, 1]`, `0, 1` or 0, and keywords unchanged; raise ValueError for anything else."""
    entries = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(entry, str | int) and not isinstance(entry, bool) for entry in entries):
        return value
    named = [word.strip() for entry in entries for word in str(entry).split(",") if word.strip()]
    if len(named) == 1 and named[0] in WORDS:
        return named[0]
    wrong = next((name for name in named if not _GPU.fullmatch(name)), None if named else str(value))
    if wrong is not None:
        raise ValueError(f"'{wrong}' is not {', '.join(WORDS)}, the number of a GPU (0) or its UUID (GPU-…)")
    if len(set(named)) < len(named):
        raise ValueError(f"'{','.join(named)}' names a GPU twice")
    return ",".join(named)
