"""Derive the arguments and options of pytest in a rank from those of the main process."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from compose_sim.pytest_plugin.marks import ClusterShape, mark_of

# Plugins that print, write a single file, or measure the main process.
_NOT_IN_RANKS = ("terminal", "cacheprovider", "junitxml", "pytest_cov", "_cov", "html", "json-report", "metadata")
# Options that select tests, stop early, distribute tests or open a prompt: only the main process acts on them.
_DEFAULTS: dict[str, Any] = {
    **{"file_or_dir": [], "keyword": "", "markexpr": "", "deselect": None, "collectonly": False, "maxfail": 0},
    **{"lf": False, "failedfirst": False, "newfirst": False, "stepwise": False, "stepwise_skip": False},
    **{"usepdb": False, "trace": False, "log_file": None, "xmlpath": None, "basetemp": None, "pastebin": None},
    **{"numprocesses": None, "maxprocesses": None, "dist": "no", "distload": False, "tx": [], "looponfail": False},
}


def arguments_of(config: pytest.Config, shape: ClusterShape, items: Iterable[pytest.Item]) -> list[str]:
    """Return the command line that makes a rank collect the files with tests of this shape."""
    files = dict.fromkeys(str(item.path) for item in items if (mark := mark_of(item)) and mark.shape == shape)
    arguments = ["--rootdir", str(config.rootpath), *(("-c", str(config.inipath)) if config.inipath else ())]
    arguments += ["--import-mode", config.getoption("importmode"), "-o", "addopts="]
    for override in config.getoption("override_ini") or ():
        arguments += ["-o", override]
    if config.getoption("confcutdir"):
        arguments += ["--confcutdir", str(config.getoption("confcutdir"))]
    for plugin in [*config.getoption("plugins"), *(f"no:{name}" for name in _NOT_IN_RANKS)]:
        arguments += ["-p", plugin]
    return [*arguments, "--", *files]


def options_of(config: pytest.Config) -> dict[str, Any]:
    """Return the options of the main process that JSON can hold, with defaults for those that ranks must not act on."""
    options = {name: value for name, value in vars(config.option).items() if _is_json(value)}
    own = {name: value for name, value in _DEFAULTS.items() if hasattr(config.option, name)}
    left = ("plugins", "override_ini", "inifilename", "rootdir", "confcutdir", "importmode")
    return {name: value for name, value in {**options, **own}.items() if name not in left}


def _is_json(value: Any) -> bool:
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError):
        return False
