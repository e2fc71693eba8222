"""How can a file of this folder, run as a script, import its neighbours without putting their names in the person's way?

By naming the folder a package that no script will call its own. Were the folder left on `sys.path`, a script's own `wire.py` or
`probe.py` could not be imported, because ours would be found first. An entry point says, before its imports:

    if __name__ == "__main__" and not __package__:
        import as_package
        __package__ = as_package.NAME
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

NAME = "composesim_node"


def _name_the_folder() -> None:
    folder = Path(__file__).resolve().parent
    # Python puts the folder of the script it runs first, unless it was told not to (PYTHONSAFEPATH).
    if sys.path and Path(sys.path[0]).resolve() == folder:
        del sys.path[0]
    spec = importlib.util.spec_from_file_location(
        NAME, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{folder} holds no __init__.py: copy the whole folder")
    package = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = package
    spec.loader.exec_module(package)


_name_the_folder()
