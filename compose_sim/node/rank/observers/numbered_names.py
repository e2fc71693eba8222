"""Record, in `check`, the dicts that number names, such as a vocabulary: variables of the script, and attributes of its own objects.

They are looked at once, while a step is taken. No code of the script runs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

from ...records.data import NumberedNames
from ...shared.frames import is_user_code
from ..context import RankContext, place
from ..torch_hooks import points
from .running_statistics import is_users
from .samples import numberings

_AT_STEP = 2
_SEEN = "numbered_names.seen"
_MAX_VARIABLES = 500  # of a function or module


def begin(context: RankContext) -> None:
    if context.mode == "record":
        points.BEFORE_STEP.subscribe(_look)


def _look(context: RankContext, *_: Any) -> None:
    if context.steps != _AT_STEP - 1 or context.memory.get(_SEEN):  # another optimizer steps too
        return
    context.memory[_SEEN] = True
    found = {name: hashes for variables in _variables(sys._getframe()) for name, *hashes in _named_in(variables)}
    for name, (names, codes) in found.items():
        context.note(NumberedNames(name, names, codes, place()))


def _variables(frame: FrameType | None) -> Iterator[dict[str, Any]]:
    """Yield the variables of the script's functions that are running, and of the modules that these are in."""
    modules: dict[str, dict[str, Any]] = {}
    while frame is not None:
        if is_user_code(frame.f_code.co_filename):
            modules[frame.f_code.co_filename] = frame.f_globals
            if frame.f_locals is not frame.f_globals:
                yield dict(frame.f_locals)
        frame = frame.f_back
    yield from modules.values()


def _named_in(variables: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    for name, value in list(variables.items())[:_MAX_VARIABLES]:
        yield from numberings({name: value})
        if not isinstance(value, type) and is_users(type(value)):
            for attribute, *hashes in numberings(getattr(value, "__dict__", {})):
                yield f"{name}.{attribute}", *hashes
