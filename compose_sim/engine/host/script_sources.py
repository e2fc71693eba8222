"""Read the text of a script and of the user's modules that it imports: those beside it, and those elsewhere on `sys.path`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from compose_sim.core.checks.source import added_folders, imported_names
from compose_sim.engine.project_files import read_project_file
from compose_sim.errors import SpecError

_MAX_FILES = 20
_LIBRARIES = frozenset({"site-packages", "dist-packages"})


def read_sources(folder: Path, script: str, search_path: Iterable[str] = ()) -> dict[str, str]:
    """
    Return the text of each file, the script first, by its path: below the project's folder, or absolute if the file is elsewhere.

    Modules are searched beside the file that imports them, in the project's folder, in `search_path` (such as PYTHONPATH), and in the
    folders that a file adds to `sys.path`. Libraries are left out.
    """
    found: dict[str, str] = {}
    waiting = [folder / script] if script else []
    root = folder.resolve()
    bases = [root, *(root / each for each in search_path if each)]
    while waiting and len(found) < _MAX_FILES:
        path = waiting.pop(0).resolve()
        name = path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)
        if name in found or _LIBRARIES & {*Path(name).parts}:
            continue
        try:
            found[name] = read_project_file(path, folder).decode("utf-8")
        except (OSError, SpecError, UnicodeDecodeError):
            continue
        bases += [root / each for each in added_folders(found[name], str(path))]
        waiting += _modules(imported_names(found[name]), [path.parent, *bases])
    return found


def _modules(names: Sequence[str], bases: Sequence[Path]) -> Iterator[Path]:
    """Yield the file of each module or package that one of the folders has: of several, the first."""
    for name in (each.replace(".", "/") for each in names):
        paths = (base / f"{name}{end}" for base in bases for end in ("/__init__.py", ".py"))
        yield from [path for path in paths if path.is_file()][:1]
