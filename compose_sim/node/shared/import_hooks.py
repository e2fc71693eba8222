"""Patch a module right after the script has imported it, without importing anything that the script would not."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Callable

_after: dict[str, list[Callable[[Any], None]]] = {}


def after_import(name: str, function: Callable[[Any], None]) -> None:
    """Call `function` with this module once it has been imported, or now if it already has."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    _after.setdefault(name, []).append(function)
    module = sys.modules.get(name)
    if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
        _call(function, module)


def wrap(owner: Any, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Replace a function of a module or class by the decorated one, which gets the original before the arguments."""
    original = getattr(owner, name)

    def replace_by(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(*arguments: Any, **options: Any) -> Any:
            return function(original, *arguments, **options)

        setattr(owner, name, wrapper)
        return function

    return replace_by


def replace(values: Mapping[str, Any], *owners: Any) -> None:
    """Set these attributes of each module that has them; `__wrapped__` stays what it was, because torch's compiler reads it."""
    for owner in owners:
        for name, value in values.items():
            if hasattr(owner, name):
                if wrapped := getattr(getattr(owner, name), "__wrapped__", None):
                    value.__wrapped__ = wrapped
                setattr(owner, name, value)


class _Finder:
    """Finds modules with the other finders, and calls the functions in `_after` after each module is executed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _after:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                _follow(spec.loader, name)
                return spec
        return None


def _follow(loader: Any, name: str) -> None:
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        del loader.exec_module  # leave no trace on the loader
        execute(module)
        # A `torch.py` of the user is another module; torch is a package.
        for function in _after[name] if name != "torch" or hasattr(module, "__path__") else ():
            _call(function, module)

    loader.exec_module = exec_module


def _call(function: Callable[[Any], None], module: ModuleType) -> None:
    try:
        function(module)
    except Exception as error:  # noqa: BLE001 - a library that lacks what we patch must still work
        print(
            f"composesim: cannot observe {module.__name__} ({error}), so checks may miss what it does", file=sys.stderr
        )
