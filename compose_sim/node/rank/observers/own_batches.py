"""Record, in `check`, the rows that a model is trained on if no loader gives them and DistributedDataParallel does not wrap it.

The first model that the script calls is followed through its first passes, which should contain an epoch of a small data set.
"""

from __future__ import annotations

import sys
from typing import Any

from ...records.data import GivenRows
from ..context import RankContext, place
from ..torch_hooks import points
from ..tracked import Outermost
from .loaders import ACTIVE
from .samples import rows_of, scaled_by_itself

_CALLED, _CALLS = "own_batches.called", "own_batches.calls"
_MAX_CALLS = 64


def begin(context: RankContext) -> None:
    if context.mode == "record":
        context.memory[_CALLED] = Outermost()
        points.MODULE_CALLED.subscribe(_called)


def _called(context: RankContext, module: Any, given: Any) -> None:
    torch: Any = sys.modules["torch"]
    calls: int = context.memory.get(_CALLS, 0)
    if calls >= _MAX_CALLS or context.memory.get(ACTIVE) is not None or not torch.is_grad_enabled():
        return
    is_first = context.memory[_CALLED].number(module) == 0
    if not is_first or isinstance(module, torch.nn.parallel.DistributedDataParallel) or not module.training:
        return
    try:
        found = rows_of(given)
        tensor: Any = next((each for each in given if type(each) is torch.Tensor), None)
        whole = tensor if getattr(tensor, "_base", None) is None else tensor._base
        scaled = None if calls else scaled_by_itself(whole)
    except (NotImplementedError, RuntimeError):  # sparse tensors, or those of functorch
        return
    if found is not None:
        context.memory[_CALLS] = calls + 1
        context.note(GivenRows(found[0], scaled, place()))
