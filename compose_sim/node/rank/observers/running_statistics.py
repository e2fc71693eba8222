"""Record, in `check`, the variances that a script takes and the running statistics that it keeps.

The latter are found by their attributes: an object of one of the script's own classes has a mean, a spread and a count. They are
looked at once, while a step is taken, because objects that a function made are gone when it has returned.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from typing import Any

from ...records.models import RunningStatistics, SpreadTaken
from ...shared.frames import is_user_code
from ..context import RankContext, place
from ..torch_hooks import points

_AT_STEP = 2  # the second: most are updated before the first
_SEEN = "running_statistics.seen"
_MEANS = ("mean", "running_mean", "_mean")
_SPREADS = ("var", "std", "running_var", "running_std", "_var", "_std", "M2", "m2", "S")
_COUNTS = ("count", "n", "num", "steps", "momentum", "decay", "alpha", "_count", "_n")
_MAX_VALUES, _MAX_SPREADS, _MAX_COLUMNS = 4, 200, 3
_SPREADS_TAKEN = "running_statistics.spreads"


def begin(context: RankContext) -> None:
    if context.mode == "record":
        points.BEFORE_STEP.subscribe(_look)
        points.SPREAD_TAKEN.subscribe(_note_spread)


def _note_spread(context: RankContext, call: points.TorchCall) -> points.Steps:
    taken = yield
    spread = taken[0] if isinstance(taken, tuple) else taken
    of = call.arguments[0] if call.arguments else call.options["input"]
    torch: Any = sys.modules["torch"]
    # While a model is compiled, tensors hold no numbers.
    if type(spread) is not torch.Tensor or type(of) is not torch.Tensor or not 0 < spread.numel() < of.numel():
        return
    numbers = of.detach().reshape(-1, 1 if spread.numel() == 1 else of.shape[-1])  # a column for each spread
    count = context.memory[_SPREADS_TAKEN] = context.memory.get(_SPREADS_TAKEN, 0) + 1
    if spread.numel() == numbers.shape[1] and count <= _MAX_SPREADS:
        try:
            means = numbers[:, :_MAX_COLUMNS].double().mean(0).tolist()
            spreads = spread.detach().flatten()[:_MAX_COLUMNS].tolist()
        except RuntimeError:  # nor do those of functorch
            return
        for value, mean in zip(spreads, means):
            context.note(SpreadTaken(call.name.startswith("std"), value, mean))


def _look(context: RankContext, *_: Any) -> None:
    if context.steps != _AT_STEP - 1 or context.memory.get(_SEEN):  # another optimizer steps too
        return
    context.memory[_SEEN] = True
    for number, (kind, mean) in enumerate(_found()):
        values = tuple(float(each) for each in mean[:_MAX_VALUES])
        context.note(RunningStatistics(kind.__qualname__, number, len(mean), values, place()))


def _found() -> Iterator[tuple[type, list[float]]]:
    classes: dict[type, bool] = {}
    for each in gc.get_objects():
        kind = type(each)
        if kind not in classes:
            classes[kind] = is_users(kind)
        if classes[kind]:
            held: dict[str, Any] = getattr(each, "__dict__", {})
            mean: Any = next((held[name] for name in _MEANS if name in held), None)
            if any(name in held for name in _SPREADS) and any(name in held for name in _COUNTS) and _is_plain(mean):
                yield kind, [float(value) for value in mean.reshape(-1)[: 1 << 16].tolist()]


def is_users(kind: type) -> bool:
    """Return whether a class is one of the script's own."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return bool(file) and is_user_code(str(file))


def _is_plain(mean: Any) -> bool:
    """Return whether this is an array or tensor of several numbers, and no result of the model."""
    if getattr(mean, "grad_fn", None) is not None or not (hasattr(mean, "reshape") and hasattr(mean, "tolist")):
        return False
    return bool((mean.numel() if hasattr(mean, "numel") else mean.size) > 1)
