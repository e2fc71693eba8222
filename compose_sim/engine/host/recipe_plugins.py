"""Find recipes: those of composesim, and those that other packages register as the entry point `composesim.recipes`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

from compose_sim.core.plan.recipes import Recipe, load_recipe
from compose_sim.core.request.names import RECIPE_GROUP, RECIPE_NAMES
from compose_sim.core.text import did_you_mean, nearest
from compose_sim.errors import ComposesimError, SpecError
from compose_sim.plugins.registry import find, installed

_PARTS = tuple(name for name in (*Recipe.__annotations__, *vars(Recipe)) if not name.startswith("_"))
_MAPPINGS = tuple(name for name, kind in Recipe.__annotations__.items() if str(kind).startswith("Mapping"))


def find_recipe(name: str) -> Recipe:
    """Return the recipe of that name. Raise SpecError if there is none, or if another package's recipe is invalid or fails later."""
    if name in RECIPE_NAMES:
        return load_recipe(name)
    feature = find(RECIPE_GROUP, name)
    if feature is None:
        known = [*RECIPE_NAMES, *installed(RECIPE_GROUP)]
        meant = "ddp" if "torch" in name else nearest(name, known)
        message = f"unknown recipe '{name}'{did_you_mean(meant or name, known)}"
        raise SpecError(message, hint=f"composesim up --recipe {meant or 'ddp'} …")
    described, recipe = feature.described, feature.load()
    if missing := [part for part in _PARTS if not hasattr(recipe, part)]:
        raise SpecError(f"{described} is invalid: it has no {', '.join(missing)}")
    for part in _MAPPINGS:
        if not isinstance(getattr(recipe, part), Mapping):
            raise SpecError(f"{described} is invalid: {part} is not a mapping")
    return cast(Recipe, _PluginRecipe(described, recipe))


class _PluginRecipe:
    """A recipe of another package: an exception in it is reported as the recipe's mistake, not as a bug of composesim."""

    def __init__(self, described: str, recipe: object) -> None:
        self._described, self._recipe = described, recipe

    def __getattr__(self, part: str) -> Any:
        found = getattr(self._recipe, part)
        return partial(self._call, part, found) if callable(found) else found

    def _call(self, part: str, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except ComposesimError:
            raise
        except Exception as error:
            import traceback

            where = error.__traceback__.tb_next if error.__traceback__ else None  # without this frame
            raise SpecError(
                f"{self._described} failed in {part}: {type(error).__name__}: {error}",
                evidence="".join(traceback.format_tb(where)).rstrip(),
            ) from error
