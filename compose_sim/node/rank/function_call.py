"""Call a function that `composesim.run` has pickled, and store what it returns for composesim to read."""

from __future__ import annotations

import contextlib
import importlib
import json
import linecache
import os
import sys
from pathlib import Path
from typing import Any

PROGRAM = "composesim.function"  # `-m` of this name calls a function; there is no such module


def main(arguments: list[str]) -> None:
    """Call the function in a folder of the run's shared storage. Arguments: FOLDER."""
    folder = Path(os.environ["COMPOSESIM_SHARED"], arguments[0])
    about = json.loads((folder / "call.json").read_text(encoding="utf-8"))
    sys.path += [entry for entry in about["path"] if entry not in sys.path]
    for name, lines in about["sources"].items():  # of notebook cells, so that tracebacks show them
        linecache.cache[name] = (0, None, lines, name)
    cloudpickle = _import_from(folder, "cloudpickle")
    function, args, kwargs = _load(cloudpickle, (folder / "call.pickle").read_bytes(), about)
    value = function(*args, **kwargs)
    _store(folder / "values", _pickled(cloudpickle, value, about["name"]))


def _import_from(folder: Path, name: str) -> Any:
    """Import a module from a folder, and leave the module search path as it was."""
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(str(folder))


def _load(cloudpickle: Any, data: bytes, about: dict[str, Any]) -> Any:
    here = list(sys.version_info[:2])
    if about["by_value"] and about["python"] != here:
        theirs, ours = (".".join(map(str, version)) for version in (about["python"], here))
        raise RuntimeError(
            f"{about['name']} was pickled by Python {theirs}, and this node runs Python {ours}, which cannot load its bytecode: "
            f"move the function to a module, or use nodes with Python {theirs}"
        )
    try:
        return cloudpickle.loads(data)
    except Exception as error:
        raise RuntimeError(f"{about['name']} cannot be loaded on this node: {error}") from error


def _pickled(cloudpickle: Any, value: Any, name: str) -> bytes:
    try:
        data: bytes = cloudpickle.dumps(value, protocol=5)
    except Exception as error:  # noqa: BLE001 - an object may raise anything when it is pickled
        raise TypeError(
            f"{name} returned a value of type {type(value).__qualname__} that cannot be pickled: {error}"
        ) from None
    return data


def _store(folder: Path, data: bytes) -> None:
    """Write the value whole or not at all. The name has the round, since a later round may have fewer ranks."""
    name = f"{os.environ['COMPOSESIM_GENERATION']}.{os.environ['RANK']}"
    partial = folder / f"{name}.partial"
    partial.write_bytes(data)
    partial.replace(folder / name)
