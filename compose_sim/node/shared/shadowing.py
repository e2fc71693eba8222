"""Find modules of a project that a new Python would import in place of others of the same name, such as its `calendar.py`."""

from __future__ import annotations

import sys
from pathlib import Path

from .frames import is_ours

# Python loads these before it looks at the folder of a script, so that no module there takes their place.
_AT_START = {
    *(
        "__main__",
        "__mp_main__",
        "_collections_abc",
        "_sitebuiltins",
        "abc",
        "codecs",
        "encodings",
        "genericpath",
        "importlib",
        "io",
    ),
    *("os", "ntpath", "posixpath", "site", "sitecustomize", "stat", "usercustomize", "zipimport"),
    *sys.builtin_module_names,
}
_ENDINGS = (".py", ".pyc", ".so")


def shadowed_modules(folder: str) -> list[str]:
    """Return the modules that are loaded, and that a module or package in this folder would have taken the place of."""
    try:
        entries = [*Path(folder).iterdir()]
    except OSError:
        return []
    names = {entry.name.partition(".")[0] for entry in entries if entry.name.endswith(_ENDINGS)}
    loaded = {name for name in sys.modules if "." not in name} - _AT_START
    names |= {entry.name for entry in entries if entry.name in loaded and (entry / "__init__.py").exists()}
    return sorted(name for name in names & loaded if not _is_there(name, folder))


def forget(names: list[str]) -> None:
    """Let the next import of these modules, and of those in them, look for them again."""
    for name in [*sys.modules]:
        if name.partition(".")[0] in names:
            del sys.modules[name]


def _is_there(name: str, folder: str) -> bool:
    """Return whether the loaded module is that of the folder, or one of composesim."""
    file = getattr(sys.modules[name], "__file__", None) or ""
    return is_ours(file) or Path(folder).resolve() in Path(file).resolve().parents
