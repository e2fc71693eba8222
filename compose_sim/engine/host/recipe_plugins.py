"""Which recipes does this machine have? Those of composesim, and those of other packages, by the entry point `composesim.recipes`."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import entry_points
from typing import Any, cast

from compose_sim.core.plan.recipes import BUILT_IN, Recipe, load_recipe
from compose_sim.errors import ComposesimError, SpecError

GROUP = "composesim.recipes"
_PARTS = tuple(name for name in (*Recipe.__annotations__, *vars(Recipe)) if not name.startswith("_"))
_MAPPINGS = tuple(name for name, kind in Recipe.__annotations__.items() if str(kind).startswith("Mapping"))


def find_recipe(name: str) -> Recipe:
    """The recipe of that name; SpecError where there is none, or what is there is not one, now or when it is asked."""
    if name in BUILT_IN:
        return load_recipe(name)
    others = {entry.name: entry for entry in entry_points(group=GROUP) if entry.name not in BUILT_IN}
    if name not in others:
        known = ", ".join([*BUILT_IN, *sorted(others)])
        raise SpecError(f"there is no recipe named '{name}'; there are: {known}", hint="composesim up --recipe ddp …")
    where = others[name].value
    try:
        recipe = others[name].load()
    except (Exception, SystemExit) as error:
        why = f"{type(error).__name__}: {error}"
        raise SpecError(f"recipe '{name}' ({where}) cannot be loaded: {why}") from error
    missing = [part for part in _PARTS if not hasattr(recipe, part)]
    if missing:
        raise SpecError(f"'{where}' is no recipe: it has no {', '.join(missing)}")
    for part in _MAPPINGS:
        if not isinstance(getattr(recipe, part), Mapping):
            raise SpecError(f"'{where}' is no recipe: its {part} are no mapping")
    return cast(Recipe, _OfOthers(f"recipe '{name}' ({where})", recipe))


class _OfOthers:
    """A recipe of another package: what fails in it is its own mistake, and no bug of composesim."""

    def __init__(self, called: str, recipe: object) -> None:
        self._called, self._recipe = called, recipe

    def __getattr__(self, part: str) -> Any:
        found = getattr(self._recipe, part)
        return partial(self._call, part, found) if callable(found) else found

    def _call(self, part: str, function: Callable[..., Any], *given: Any) -> Any:
        try:
            return function(*given)
        except ComposesimError:
            raise
        except Exception as error:
            where = error.__traceback__.tb_next if error.__traceback__ else None  # without this frame
            raise SpecError(
                f"{self._called} failed in {part}: {type(error).__name__}: {error}",
                evidence="".join(traceback.format_tb(where)).rstrip(),
            ) from error
