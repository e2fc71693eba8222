"""Find what plug-ins add to nodes: roles and observers."""

from __future__ import annotations

import os
from importlib import import_module
from types import ModuleType

_ROOT = __name__.partition(".node.")[0]  # the package, and in a node the one that stands for it


def names(group: str) -> dict[str, str]:
    """Return name -> module of what the plug-ins on this node have in a group of their ENTRY_POINTS."""
    try:
        package = import_module(f"{_ROOT}.plugins")
    except ModuleNotFoundError:  # this node has no plug-ins
        return {}
    found: dict[str, str] = {}
    for folder in sorted({entry.name for path in package.__path__ for entry in os.scandir(path) if entry.is_dir()}):
        if not folder.startswith("_"):
            tables = getattr(import_module(f"{_ROOT}.plugins.{folder}"), "ENTRY_POINTS", {})
            found |= tables.get(group, {})
    return found


def load(module: str) -> ModuleType:
    """Import a module that `names` returned."""
    return import_module(_ROOT + module.removeprefix("compose_sim"))
