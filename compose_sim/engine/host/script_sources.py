"""Read the text of a script and of the modules beside it that it imports."""

from __future__ import annotations

from pathlib import Path

from compose_sim.core.checks.source.hints import imported_names
from compose_sim.engine.project_files import read_project_file
from compose_sim.errors import SpecError

_MOST_FILES = 20


def read_sources(folder: Path, script: str) -> dict[str, str]:
    """Return the text of each file by its path below the project's folder, the script first; files elsewhere are left out."""
    found: dict[str, str] = {}
    waiting = [folder / script] if script else []
    root = folder.resolve()
    while waiting and len(found) < _MOST_FILES:
        path = waiting.pop(0).resolve()
        name = path.relative_to(root).as_posix() if path.is_relative_to(root) else ""
        if not name or name in found:
            continue
        try:
            found[name] = read_project_file(path, folder).decode("utf-8")
        except (OSError, SpecError, UnicodeDecodeError):
            continue
        below = [part.replace(".", "/") for part in imported_names(found[name])]
        waiting += [
            base / f"{each}.py" for each in below for base in (path.parent, root) if (base / f"{each}.py").is_file()
        ]
    return found
