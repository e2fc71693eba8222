"""Which recipes does this machine have? Those of composesim, and those of other packages, by the entry point `composesim.recipes`."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import cast

from compose_sim.core.recipes import BUILT_IN, Recipe, load_recipe
from compose_sim.errors import SpecError

GROUP = "composesim.recipes"
_PARTS = tuple(name for name in (*Recipe.__annotations__, *vars(Recipe)) if not name.startswith("_"))


def find_recipe(name: str) -> Recipe:
    """The recipe of that name; SpecError where there is none, or what is there is not one."""
    if name in BUILT_IN:
        return load_recipe(name)
    others = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in others:
        known = ", ".join([*BUILT_IN, *sorted(others)])
        raise SpecError(f"there is no recipe named '{name}'; there are: {known}", hint="composesim up --recipe ddp …")
    try:
        recipe = others[name].load()
    except Exception as error:
        raise SpecError(f"recipe '{name}' ({others[name].value}) cannot be loaded: {error}") from error
    missing = [part for part in _PARTS if not hasattr(recipe, part)]
    if missing:
        raise SpecError(f"'{others[name].value}' is no recipe: it has no {', '.join(missing)}")
    return cast(Recipe, recipe)
