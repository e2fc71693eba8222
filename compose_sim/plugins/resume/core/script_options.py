"""Find the options of a script that have to do with checkpoints, in the text of its files, and add some to a command."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from compose_sim.core.checks.source import parsed

_RESUMES = re.compile(r"--(resume|auto[-_]resume|continue|load[-_]checkpoint|restore)")
_SWITCHES = ("--resume", "--auto-resume", "--auto_resume", "--continue")
_INTERVAL = re.compile(r"-(every|freq|frequency|interval|steps)$|_(every|freq|frequency|interval|steps)$")
_SAVES = re.compile(r"save|saving|checkpoint|ckpt|snapshot")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptOption:
    """An option that a script defines with `add_argument`."""

    name: str
    is_switch: bool = False
    value: str = ""  # that it has: as given, or else the default


def resuming_option(texts: Iterable[str]) -> ScriptOption | None:
    """Return the first option that seems to resume; switches of a usual name come first."""
    found = [each for each in _options(texts) if _RESUMES.match(each.name)]
    return next((each for each in found if each.is_switch and each.name in _SWITCHES), found[0] if found else None)


def saving_interval(texts: Iterable[str], arguments: Sequence[str] = ()) -> ScriptOption | None:
    """Return the option that says how often a checkpoint is saved, with the value that it has among these arguments."""
    found = (each for each in _options(texts) if _SAVES.search(each.name) and _INTERVAL.search(each.name))
    option = next(found, None)
    if option is None:
        return None
    for word, following in zip_longest(arguments, arguments[1:], fillvalue=""):
        name, _, value = word.partition("=")
        if name == option.name:
            return replace(option, value=value or following)
    return option


def command_with(typed: Sequence[str], options: Sequence[str] = (), arguments: Sequence[str] = ()) -> str:
    """Return a command of `check --resume` with more options, and more arguments of the script."""
    after = typed.index("--resume") + 1 if "--resume" in typed else 1
    return shlex.join(["composesim", *typed[:after], *options, *typed[after:], *arguments])


def _options(texts: Iterable[str]) -> Iterator[ScriptOption]:
    for tree in filter(None, map(parsed, texts)):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
                names = [each.value for each in node.args if isinstance(each, ast.Constant)]
                name = next((each for each in names if isinstance(each, str) and each.startswith("--")), "")
                given = {each.arg: getattr(each.value, "value", None) for each in node.keywords}
                if name:
                    default = given.get("default")
                    value = "" if default is None else str(default)
                    yield ScriptOption(name=name, is_switch=given.get("action") == "store_true", value=value)
