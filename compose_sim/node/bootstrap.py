"""Make the code of nodes importable as `composesim_node.node`, and that of plug-ins as `composesim_node.plugins.NAME.node`.

The package `composesim_node` stands for `compose_sim`, most of which nodes do not have. Plug-ins are beside this folder in the
package, and inside it in the folder of a run (`run_folder/folder.py`).
If this folder stayed on `sys.path`, our `rank` or `records` would shadow a script's module of the same name.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from pathlib import Path

ROOT = "composesim_node"
NAME = f"{ROOT}.node"


def _make_importable() -> None:
    folder = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != folder]
    root = importlib.machinery.ModuleSpec(ROOT, None, is_package=True)
    root.submodule_search_locations = [str(folder.parent), str(folder)]
    spec = importlib.util.spec_from_file_location(
        NAME, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{folder} has no __init__.py: copy the whole folder")
    sys.modules[ROOT] = importlib.util.module_from_spec(root)
    package = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = package
    spec.loader.exec_module(package)


_make_importable()
