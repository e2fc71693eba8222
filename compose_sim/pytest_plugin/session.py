"""What must pytest in a rank know of the pytest that speaks to the person? What to collect, and the options as they are there."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from compose_sim.pytest_plugin import Shape, wanted_by

# They speak to the person, write files of which there is one, or measure what is not theirs.
_NOT_IN_RANKS = ("terminal", "cacheprovider", "junitxml", "pytest_cov", "_cov", "html", "json-report", "metadata")
# What chooses tests, stops early, runs elsewhere or waits at a prompt is the main process's business.
_OURS: dict[str, Any] = {
    **{"file_or_dir": [], "keyword": "", "markexpr": "", "deselect": None, "collectonly": False, "maxfail": 0},
    **{"lf": False, "failedfirst": False, "newfirst": False, "stepwise": False, "stepwise_skip": False},
    **{"usepdb": False, "trace": False, "log_file": None, "xmlpath": None, "basetemp": None, "pastebin": None},
    **{"numprocesses": None, "maxprocesses": None, "dist": "no", "distload": False, "tx": [], "looponfail": False},
}


def arguments_of(config: pytest.Config, shape: Shape, items: Iterable[pytest.Item]) -> list[str]:
    """The command line of pytest in a rank: collect the files that have tests of this shape."""
    files = dict.fromkeys(str(item.path) for item in items if (wanted := wanted_by(item)) and wanted.shape == shape)
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
    """The options of the main process that can travel, with those that are its own put back."""
    options = {name: value for name, value in vars(config.option).items() if _travels(value)}
    own = {name: value for name, value in _OURS.items() if hasattr(config.option, name)}
    left = ("plugins", "override_ini", "inifilename", "rootdir", "confcutdir", "importmode")
    return {name: value for name, value in {**options, **own}.items() if name not in left}


def _travels(value: Any) -> bool:
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError):
        return False
