"""Let a script write files without changing any: what it writes goes to a folder of its own, and is read from there."""

from __future__ import annotations

import builtins
import io
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

_WRITES = frozenset("wax+")


def install(folder: Path) -> None:
    """Redirect what the script opens to write. Files in the temporary folder are its own already."""
    opened = io.open
    temporary = os.path.realpath(tempfile.gettempdir())

    def open_beside(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if isinstance(file, (str, os.PathLike)):
            path = os.path.realpath(os.fsdecode(file))
            if not path.startswith((f"{temporary}{os.sep}", "/dev/", "/proc/")):
                beside = folder / path.lstrip(os.sep)
                if _WRITES & set(mode) and Path(path).parent.is_dir() and not beside.exists():
                    beside.parent.mkdir(parents=True, exist_ok=True)
                    if Path(path).is_file():
                        shutil.copyfile(path, beside)
                if beside.is_file() or (_WRITES & set(mode) and beside.parent.is_dir()):
                    file = beside
        return opened(file, mode, *arguments, **options)

    builtins.open = open_beside
    io.open = open_beside
