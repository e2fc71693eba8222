"""Record, in `check`, the dicts that number names, such as a vocabulary: variables of the script, and attributes of its own objects.

They are looked at once, while a step is taken. No code of the script runs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from inspect import CO_OPTIMIZED
from types import FrameType
from typing import Any

from ...records.data import NumberedNames
from ...shared.frames import is_user_code
from ..context import RankContext, place
from ..torch_hooks import points
from .running_statistics import is_users
from .samples import has_codes, hashes_of_codes

_AT_STEP = 2
_SEEN = "numbered_names.seen"
_MAX_VARIABLES = 500  # of a function or module
_MIN_NAMES = 8  # fewer may be counts that happen to be numbers in a row


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
            if frame.f_code.co_flags & CO_OPTIMIZED:  # a function
                yield from _variables_of(frame)
        frame = frame.f_back
    yield from modules.values()


def _variables_of(frame: FrameType) -> Iterator[dict[str, Any]]:
    held = frame.f_locals
    yield dict(held)
    if type(held) is dict:
        held.clear()  # before Python 3.13, the frame would keep this copy, and all that it holds


def _named_in(variables: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    for name, value in list(variables.items())[:_MAX_VARIABLES]:
        if _numbers_names(value):
            yield name, *hashes_of_codes(value)
        elif is_users(type(value)):
            for attribute, own in list(_attributes(value).items())[:_MAX_VARIABLES]:
                if _numbers_names(own):
                    yield f"{name}.{attribute}", *hashes_of_codes(own)


def _attributes(value: Any) -> dict[str, Any]:
    try:
        held: dict[str, Any] = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return held


def _numbers_names(value: Any) -> bool:
    """Return whether a dict numbers many names in the order in which they were added: no counters, and no orders of files."""
    if not has_codes(value, _MIN_NAMES):
        return False
    codes = [*value.values()]
    return codes == [*range(codes[0], codes[0] + len(codes))] and not any("." in name or "/" in name for name in value)
