"""Name, in `check`, the parameters of an optimizer that no DDP model holds, by the modules that exist when it first steps.

Nothing lists modules, so they are looked for among all objects. The names only go into messages.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from ...records.gradients import ParameterNames
from ..context import RankContext

_MAX_PARAMETERS = 2000


def note_names(context: RankContext, index: int, numbered: dict[str, Any]) -> None:
    """Record the names of these parameters of an optimizer, which are known by their numbers in it."""
    if not 0 < len(numbered) <= _MAX_PARAMETERS:
        return
    names = _names()
    found = {number: names[id(each)] for number, each in numbered.items() if id(each) in names}
    counts = Counter(found.values())
    unique = tuple((number, name) for number, name in found.items() if counts[name] == 1)
    if unique:
        context.note(ParameterNames(index, unique))


def _names() -> dict[int, str]:
    """Return the names of all parameters in the outermost modules, those in larger ones first."""
    from ..replay.wrapped_models import models_of  # which imports torch

    modules = models_of("torch.nn.modules.module", "Module")
    inside = {id(child) for each in modules for child in each.children()}
    roots = [dict(each.named_parameters()) for each in modules if id(each) not in inside]
    return {id(each): name for held in sorted(roots, key=len) for name, each in held.items()}
