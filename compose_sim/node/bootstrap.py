"""Make this folder importable as the package `composesim_node`.

If the folder stayed on `sys.path`, our `rank` or `services` would shadow a script's module of the same name.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

NAME = "composesim_node"


def _make_importable() -> None:
    folder = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != folder]
    spec = importlib.util.spec_from_file_location(
        NAME, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{folder} has no __init__.py: copy the whole folder")
    package = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = package
    spec.loader.exec_module(package)


_make_importable()
