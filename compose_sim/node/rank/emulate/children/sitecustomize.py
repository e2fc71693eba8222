"""Set up the emulation in a Python that a rank has started: Python imports this module at startup.

The user's own sitecustomize, which this module hides, runs afterwards.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path

_HERE = str(Path(__file__).resolve().parent)


def _emulate() -> None:
    node_code = str(Path(_HERE).parents[2])
    sys.path.insert(0, node_code)
    try:
        import bootstrap  # type: ignore[import-not-found,unused-ignore]

        importlib.import_module(f"{bootstrap.NAME}.rank.emulate").install()
    finally:
        if node_code in sys.path:
            sys.path.remove(node_code)


def _run_the_users() -> None:
    elsewhere = [folder for folder in sys.path if os.path.abspath(folder or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_emulate()
_run_the_users()
