"""Repeat some forward passes of a model with the same inputs and random numbers, in `check`, and compare the bits.

The outermost module that is called to train is repeated, within the call: before anything else happens, and with all random
generators, buffers and plain attributes as they were. Models that exchange tensors with other ranks are left alone.
"""

from __future__ import annotations

import random
import sys
import time
import weakref
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from ...records.models import RepeatedPass
from ..context import RankContext
from ..torch_hooks import points
from . import states
from .collectives import issued

_COUNTS, _ACTIVE = "repeats.counts", "repeats.active"
_EARLY, _EVERY = (2, 3, 5, 10), 20  # forward passes that are repeated
_LONGEST_S = 2.0
_PLAIN = (bool, int, float, type(None))


def begin(context: RankContext) -> None:
    if context.mode == "record":
        points.MODULE_CALLED.subscribe(_before_call)


def _before_call(context: RankContext, module: Any, _: Any) -> None:
    is_training = module.training and sys.modules["torch"].is_grad_enabled()
    if is_training and not context.memory.get(_ACTIVE) and not _is_wrapper(module):
        _begin(context, module)


def _is_wrapper(module: Any) -> bool:
    return type(module).__name__ in ("DistributedDataParallel", "FullyShardedDataParallel", "OptimizedModule")


def _begin(context: RankContext, module: Any) -> None:
    # 0: inside another, or not repeatable.
    counts: Any = context.memory.setdefault(_COUNTS, weakref.WeakKeyDictionary())
    count = counts.get(module)
    if count is None:
        for each in module.modules():
            counts[each] = 0
        count = 0 if not _is_repeatable(module) else 1
        counts[module] = count + 1 if count else 0
        return
    if not count:
        return
    counts[module] = count + 1
    if count not in _EARLY and count % _EVERY:
        return
    kept = _Kept(module)
    exchanged, began = issued(context), time.monotonic()

    def repeat(_: Any, arguments: Any, options: Any, output: Any) -> None:
        handle.remove()
        if issued(context) == exchanged and time.monotonic() - began < _LONGEST_S:
            context.memory[_ACTIVE] = True
            try:
                context.guard(__name__, _repeat, module, count, kept, arguments, options, output)
            finally:
                context.memory[_ACTIVE] = False

    handle = module.register_forward_hook(repeat, with_kwargs=True)


def _is_repeatable(module: Any) -> bool:
    """Return whether nothing but the module's own code runs in a call: no hooks, no sharded parameters, no ranks."""
    each_parameter = (each for each in module.parameters())
    sharded = any(hasattr(each, "placements") or hasattr(each, "_is_flat_param") for each in each_parameter)
    hooked = any(each._forward_hooks or each._forward_pre_hooks for each in module.modules())
    of_ranks = any(_is_wrapper(each) or type(each).__name__ == "SyncBatchNorm" for each in module.modules())
    return not (sharded or hooked or of_ranks) and next(module.parameters(), None) is not None


class _Kept:
    """What a forward pass may change: random generators, buffers, and plain attributes of modules."""

    def __init__(self, module: Any) -> None:
        self._buffers = [(each, each.detach().clone()) for each in module.buffers()]
        self._plain = [
            (each, {key: value for key, value in vars(each).items() if type(value) in _PLAIN})
            for each in module.modules()
        ]
        held = [value for each in module.modules() for value in vars(each).values()]
        self._generators = [*_generators(), *_generators_among(held)]

    def restore(self) -> None:
        """Set everything to what it was."""
        torch: Any = sys.modules["torch"]
        with torch.no_grad():
            for buffer, value in self._buffers:
                buffer.data.copy_(value)
        for module, values in self._plain:
            vars(module).update(values)
        for restore, state in self._generators:
            restore(state)


def _generators() -> list[tuple[Any, Any]]:
    torch: Any = sys.modules["torch"]
    numpy: Any = sys.modules.get("numpy")
    found = [(torch.set_rng_state, torch.get_rng_state()), (random.setstate, random.getstate())]
    if torch.cuda.is_initialized():
        found.append((torch.cuda.set_rng_state, torch.cuda.get_rng_state()))
    if numpy is not None and hasattr(numpy, "random"):
        found.append((numpy.random.set_state, numpy.random.get_state()))
    return found


def _generators_among(values: list[Any]) -> Iterator[tuple[Any, Any]]:
    torch, numpy = sys.modules["torch"], sys.modules.get("numpy")
    for each in values:
        if isinstance(each, torch.Generator):
            yield each.set_state, each.get_state()
        elif isinstance(each, random.Random):
            yield each.setstate, each.getstate()
        elif numpy is not None and hasattr(numpy, "random") and isinstance(each, numpy.random.Generator):
            yield partial(setattr, each.bit_generator, "state"), each.bit_generator.state


def _repeat(
    context: RankContext, module: Any, count: int, kept: _Kept, arguments: Any, options: Any, output: Any
) -> None:
    after = _Kept(module)
    first = list(_tensors(output))
    kept.restore()
    try:
        again = list(_tensors(module.forward(*arguments, **options)))
    finally:
        after.restore()
    one, other = (states.hashes_of([each.detach() for each in found], whole=True) for found in (first, again))
    difference = 0.0 if one == other else _difference(first, again)
    context.note(RepeatedPass(type(module).__name__, count, one == other, difference))


def _difference(first: list[Any], again: list[Any]) -> float:
    """Return the largest difference relative to the largest value; infinity if it cannot be compared."""
    worst = 0.0
    for one, other in zip(first, again):
        if one.shape != other.shape:
            return float("inf")
        difference = (one.detach().double() - other.detach().double()).abs().max()
        worst = max(worst, float(difference / one.detach().double().abs().max().clamp_min(1e-30)))
    return worst


def _tensors(value: Any) -> Iterator[Any]:
    torch: Any = sys.modules["torch"]
    if type(value) is torch.Tensor and value.numel() and not value.is_complex():
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _tensors(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors(each)
