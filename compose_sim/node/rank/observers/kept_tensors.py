"""Record, in `check`, the tensors that objects of the script's own keep while it trains without an optimizer of torch.

Such are the states of a hand-written optimizer. The objects are found as those of `running_statistics.py` are; they are looked at while
the script trains, and before the first backward pass after a checkpoint was loaded, when what came from it has not changed yet.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ...records.models import KeptTensors
from ...records.record import Place
from ..context import RankContext, place
from ..torch_hooks import points, updates_by_hand
from ..tracked import parameters_of
from . import states
from .checkpoints import follow_loaded
from .running_statistics import is_users

_MEMORY = "kept_tensors.kept"
_DEPTH, _MAX_TENSORS, _MAX_ELEMENTS, _MIN_SIZE = 4, 512, 1 << 24, 8
_CONTAINERS = dict, OrderedDict, defaultdict, list, tuple
_MAX_LOOKS = 12  # at all objects, after a load
_MAX_OBJECTS = 4  # of a class


@dataclass(eq=False)
class Kept:
    """What is known of the script's own objects."""

    is_by_hand: bool = False
    looks: int = 0
    loaded: dict[str, Place | None] = field(default_factory=dict)  # hashes of tensors, since the last backward pass


def begin(context: RankContext) -> None:
    if context.mode == "record":
        context.memory[_MEMORY] = Kept()
        points.BEFORE_STEP.subscribe(_look_before)
        points.BACKWARD.subscribe(_look_after)
        follow_loaded(_note_load)


def _look_before(context: RankContext, optimizer: Any, *_: Any) -> None:
    step = context.steps
    if not step or step & (step - 1) or not updates_by_hand.stands_in(optimizer) or states.is_capturing():
        return
    context.memory[_MEMORY].is_by_hand = True
    sizes = tuple(each.numel() for each in parameters_of(optimizer))
    _note(context, _found(), sizes, None)


def _look_after(context: RankContext, _: points.TorchCall) -> None:
    kept: Kept = context.memory[_MEMORY]
    if not kept.loaded or states.is_capturing():
        return
    loaded, kept.loaded = kept.loaded, {}
    kept.looks += 1
    # What belongs to no checkpoint, such as another run of the same class, does not count.
    found = [
        (kind, given)
        for kind, held in _found()
        if (given := {name: each for name, each in held.items() if each[1] in loaded})
    ]
    first = next((loaded[hashed] for _, held in found for _, hashed in held.values()), None)
    _note(context, found, (), first)


_Held = dict[str, "tuple[int, str]"]  # by name: the size and a hash


def _note(context: RankContext, found: list[tuple[type, _Held]], parameters: tuple[int, ...], at: Place | None) -> None:
    counts = Counter(kind for kind, _ in found)
    for kind, held in found:
        if counts[kind] == 1:  # after a load, one of two may hold what came from it
            sizes, hashes = zip(*held.values())
            context.note(KeptTensors(kind.__qualname__, context.steps, tuple(held), sizes, hashes, parameters, at))


def _found() -> list[tuple[type, _Held]]:
    """Return the objects of the script's own classes that keep tensors, unless many of a class could not be told apart."""
    torch: Any = sys.modules["torch"]
    others = torch.nn.Module, torch.optim.Optimizer, torch.Tensor, torch.utils.data.Dataset
    classes: dict[type, bool] = {}
    objects: dict[type, list[Any]] = {}
    for each in gc.get_objects():
        kind = type(each)
        if kind not in classes:
            classes[kind] = is_users(kind) and not issubclass(kind, others) and kind.__dictoffset__ != 0
        if classes[kind]:
            objects.setdefault(kind, []).append(each)
    few = [each for own in objects.values() if len(own) <= _MAX_OBJECTS for each in own]
    held = [(type(each), _hashed(object.__getattribute__(each, "__dict__"))) for each in few]
    return [(kind, tensors) for kind, tensors in held if tensors]


def _hashed(value: Any) -> _Held:
    """Return the size and a hash of each tensor that may be a state; none if they are too large."""
    tensors = dict(_tensors_in(value, _DEPTH, [_MAX_TENSORS]))
    if sum(each.numel() for each in tensors.values()) > _MAX_ELEMENTS:
        return {}
    known = {name: each.detach().cpu() for name, each in tensors.items()}
    known = {name: each for name, each in known.items() if bool((each != each.reshape(-1)[0]).any())}
    hashes = states.hashes_of([*known.values()], whole=True)
    return {name: (each.numel(), str(hashed)) for (name, each), hashed in zip(known.items(), hashes)}


def _tensors_in(value: Any, depth: int, left: list[int], name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield, by name, the plain tensors in dicts and lists that may be states; no code of the script runs."""
    torch: Any = sys.modules["torch"]
    if type(value) is torch.Tensor:
        if _is_plain(value) and left[0] > 0:
            left[0] -= 1
            yield name, value
    elif depth and type(value) in _CONTAINERS and len(value) <= _MAX_TENSORS:
        held = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
        for number, (key, each) in enumerate(held):
            own = key if isinstance(key, (str, int)) else number  # a dict may be keyed by parameters
            yield from _tensors_in(each, depth - 1, left, f"{name}.{own}" if name else str(own))


def _is_plain(tensor: Any) -> bool:
    """Return whether a tensor may be a state; one without memory is that of a parameter which is gathered when it is needed."""
    torch: Any = sys.modules["torch"]
    if tensor.requires_grad or tensor.layout is not torch.strided or tensor.device.type == "meta":
        return False
    return bool(tensor.is_floating_point() and tensor.numel() >= _MIN_SIZE and tensor.untyped_storage().nbytes())


def _note_load(context: RankContext, loaded: Any, _: bool) -> None:
    kept: Kept = context.memory[_MEMORY]
    if kept.is_by_hand and kept.looks < _MAX_LOOKS:
        kept.loaded.update(dict.fromkeys((hashed for _, hashed in _hashed(loaded).values()), place()))
