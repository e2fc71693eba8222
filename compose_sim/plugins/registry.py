"""
Find optional features by group and name: the plug-ins in this folder, and what other distributions register.

- Nothing outside a plug-in imports it. Code that offers a choice of features asks this module for their names, and loads one by name.
- `built_in` imports only the `__init__.py` of plug-ins, which import nothing, so that `--help` and `plan` stay quick.
- Metadata of distributions takes long to read: once per group, and by `find` only if no plug-in in this folder has the name.
- A feature in this folder wins over one of another distribution with the same name.
- A feature of another distribution that cannot be loaded is a SpecError that names it; one in this folder is a bug of composesim.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from compose_sim.errors import SpecError

ENGINES = "composesim.engines"  # besides docker and local


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """An optional feature that is not loaded yet."""

    group: str  # composesim.recipes
    name: str  # ray
    value: str  # module:attribute, or a module
    summary: str = ""  # one sentence; "" for features of other distributions
    after: str = ""  # the verb that a command follows in `--help`
    program: str = ""  # without which an engine is not on this machine
    is_built_in: bool = False

    @property
    def described(self) -> str:
        """The feature as messages name it: recipe 'ray' (package.module:attribute)."""
        return f"{self.group.rpartition('.')[2].removesuffix('s')} '{self.name}' ({self.value})"

    def load(self) -> Any:
        """Import the feature and return it. Raise SpecError if one of another distribution cannot be imported."""
        module, _, attributes = self.value.partition(":")
        try:
            found: Any = import_module(module)
            for attribute in filter(None, attributes.split(".")):
                found = getattr(found, attribute)
        except (Exception, SystemExit) as error:
            if self.is_built_in:
                raise
            raise SpecError(f"{self.described} cannot be loaded: {type(error).__name__}: {error}") from error
        return found


@cache
def built_in(group: str) -> Mapping[str, Feature]:
    """Return the features of a group in this folder, by name, in the order of their plug-ins' names."""
    found = {}
    for folder in sorted(os.scandir(Path(__file__).parent), key=lambda each: each.name):
        if not folder.is_dir() or folder.name.startswith("_"):
            continue
        module = import_module(f"{__package__}.{folder.name}")
        # A folder in which git left only bytecode has no tables.
        tables = ("SUMMARIES", "AFTER", "PROGRAMS", "NEEDS")
        summaries, after, programs, needs = (getattr(module, table, {}) for table in tables)
        for name, value in getattr(module, "ENTRY_POINTS", {}).get(group, {}).items():
            if name in needs and not Path(__file__).with_name(needs[name]).joinpath("__init__.py").is_file():
                continue
            found[name] = Feature(
                group=group,
                name=name,
                value=value,
                summary=summaries.get(name, ""),
                after=after.get(name, ""),
                program=programs.get(name, ""),
                is_built_in=True,
            )
    return found


@cache
def installed(group: str) -> Mapping[str, Feature]:
    """Return the features of a group that other distributions register, by name, except those that have the name of one here."""
    from importlib.metadata import entry_points

    own = built_in(group)
    found = sorted((entry.name, entry.value) for entry in entry_points(group=group) if entry.name not in own)
    return {name: Feature(group=group, name=name, value=value) for name, value in found}


def find(group: str, name: str) -> Feature | None:
    """Return the feature of this name, from this folder or else from another distribution; None if there is none."""
    return built_in(group).get(name) or installed(group).get(name)
