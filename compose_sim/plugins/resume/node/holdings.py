"""Find the tensors that a training run goes on from: parameters, optimizer state, buffers, averages of weights, the scale of gradients.

Only bits are read. Models and averages are found among the living objects, at few steps, because a script may keep them anywhere.
"""

from __future__ import annotations

import gc
import hashlib
import math
import sys
import weakref
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

from ....node.rank.context import RankContext
from ....node.rank.observers.models import clean
from ....node.rank.observers.samples import bytes_of
from ....node.rank.observers.sketches import sums_of
from ....node.rank.torch_hooks.updates_by_hand import stands_in
from ....node.records.resumption import HeldTensor, TensorSketch
from ....node.shared.frames import is_user_code

_MAX_TENSORS, _HASHED = 600, 1 << 22  # spread evenly; elements of each
_MAX_LEVELS = 30  # of the stack
Found = Iterator[tuple[HeldTensor, Any]]


class Holdings:
    """What one rank's training holds."""

    def __init__(self) -> None:
        """Search at the first step."""
        self.scaler: Any = None  # a weak reference to the last one that stepped
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._models: list[Any] = []
        self._averages: list[Any] = []
        self._objects: list[Any] = []
        self._looks = 0

    def tensors(self, optimizer: Any) -> list[tuple[HeldTensor, Any]]:
        """Return what there is now, a row and a tensor or number each; some of very many."""
        self._looks += 1
        is_new = optimizer not in self._optimizers
        self._optimizers.add(optimizer)
        if is_new or self._looks & (self._looks - 1) == 0:  # at steps 1, 2, 4, …: averages may begin late
            self._search()
        found: dict[HeldTensor, Any] = {}
        for row, value in self._all(optimizer):
            found.setdefault(row, value)
        few = [*found.items()]
        return few[:: 1 + (len(few) - 1) // _MAX_TENSORS] if few else few

    def _search(self) -> None:
        groups = [group for each in self._optimizers for group in each.param_groups]
        own = {id(each) for group in groups for each in group["params"]}
        from ....node.rank.replay.wrapped_models import models_of  # which imports torch

        modules = models_of("torch.nn.modules.module", "Module")
        inner = {id(child) for each in modules for child in each.children()}
        roots = [each for each in modules if id(each) not in inner]
        self._models = [weakref.ref(each) for each in roots if any(id(p) in own for p in each.parameters())]
        shapes = {tuple(each.shape) for each in map(lambda made: made(), self._models) for each in each.parameters()}
        self._averages = [
            weakref.ref(each)
            for each in roots
            if (held := [*each.parameters()])
            and not any(id(p) in own for p in held)
            and all(tuple(p.shape) in shapes for p in held)
        ]
        known = set(map(id, modules))
        users = (each for each in gc.get_objects() if _is_users(type(each)) and id(each) not in known)
        self._objects = [weakref.ref(each) for each in users if _has_weak_references(each)]

    def _all(self, optimizer: Any) -> Found:
        models = [model for each in self._models if (model := each()) is not None]
        names: dict[int, str] = {}
        for model in models:
            for name, parameter in model.named_parameters():
                names.setdefault(id(parameter), clean(name))
        yield from _of_optimizer(optimizer, names)
        if stands_in(optimizer):
            yield from self._of_users_optimizers({*names})
        stepping = {id(each) for group in optimizer.param_groups for each in group["params"]}
        for model in models:
            if not any(id(each) in stepping for each in model.parameters()):
                continue  # of another optimizer, at whose steps its buffers are compared
            lost = {f"{prefix}{own}" for prefix, own in _not_saved(model)}
            for name, buffer in model.named_buffers():
                if name not in lost:
                    yield _row("buffer", clean(name), buffer)
        scaler = self.scaler() if self.scaler is not None else None
        for name, value in (scaler.state_dict() if scaler is not None else {}).items():
            yield HeldTensor("scaler", str(name)), value
        yield from self._of_averages(models)

    def _of_averages(self, models: list[Any]) -> Found:
        for number, model in enumerate(each for made in self._averages if (each := made()) is not None):
            for name, tensor in (*model.named_parameters(), *model.named_buffers()):
                yield _row("average", f"{type(model).__name__} {number}: {clean(name)}", tensor)
        held = {clean(name): each for model in models for name, each in model.named_parameters()}
        own = {each.data_ptr() for each in held.values() if hasattr(each, "data_ptr")}
        for owner, value in self._named_values():
            for name, tensor in _average_in(value, held, own):
                yield _row("average", f"{owner}: {name}", tensor)

    def _of_users_optimizers(self, parameters: set[int]) -> Found:
        """Yield the tensors in the script's own objects that have a method `step`, as far as they are no parameters."""
        for made in self._objects:
            each = made()
            held = getattr(each, "__dict__", None) if callable(getattr(type(each), "step", None)) else None
            for name, value in [*held.items()] if type(held) is dict else []:
                for key, it in _entries(value):
                    if _is_tensor(it) and not it.requires_grad and id(it) not in parameters:
                        yield _row("optimizer state", f"{type(each).__name__}.{name}{key}", it)

    def _named_values(self) -> Iterator[tuple[str, Any]]:
        """Yield the variables of the functions that are running, those of the script, and the attributes of the script's objects."""
        frame: FrameType | None = sys._getframe(1)
        for _ in range(_MAX_LEVELS):
            if frame is None:
                break
            if is_user_code(frame.f_code.co_filename):
                yield from [*frame.f_locals.items()]
            frame = frame.f_back
        for made in self._objects:
            each = made()
            held = getattr(each, "__dict__", None)
            if type(held) is dict:
                yield from ((f"{type(each).__name__}.{name}", value) for name, value in [*held.items()])


def _entries(value: Any) -> list[tuple[str, Any]]:
    """Return what a value or a collection holds, with its key in brackets."""
    if type(value) in (list, tuple):
        return [(f"[{number}]", each) for number, each in enumerate(value)]
    return [(f"[{key}]", each) for key, each in value.items()] if type(value) is dict else [("", value)]


def _is_users(kind: type) -> bool:
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return bool(file) and is_user_code(str(file)) and not issubclass(kind, type)


def _has_weak_references(each: Any) -> bool:
    return type(each).__weakrefoffset__ > 0 and hasattr(type(each), "__dict__")


def _not_saved(model: Any) -> Iterator[tuple[str, str]]:
    """Yield the buffers that are not part of the state dict: prefix and name."""
    for prefix, module in model.named_modules():
        saved = getattr(module, "_non_persistent_buffers_set", ())
        yield from ((f"{prefix}." if prefix else "", name) for name in saved)


def _of_optimizer(optimizer: Any, names: dict[int, str]) -> Found:
    inner = getattr(optimizer, "optim", None)  # of a ZeroRedundancyOptimizer, which holds the state of a part
    state = getattr(inner if hasattr(inner, "state") else optimizer, "state", {})
    parameters = [
        (names.get(id(parameter), f"{number} of group {group_number}"), parameter)
        for group_number, group in enumerate(optimizer.param_groups)
        for number, parameter in enumerate(group["params"])
    ]
    for name, parameter in parameters:
        yield _row("parameter", name, parameter)
    for name, parameter in parameters:
        for key, value in sorted((state.get(parameter) or {}).items(), key=lambda item: str(item[0])):
            if _is_tensor(value):
                yield _row("optimizer state", f"{name}: {key}", value)
            elif isinstance(value, (int, float)):
                yield HeldTensor("optimizer state", f"{name}: {key}"), value


def _average_in(value: Any, held: dict[str, Any], own: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of a dict or list if each has the shape of a parameter, and they are copies."""
    if type(value) is list and len(value) == len(held):
        pairs: Iterable[tuple[str, Any]] = zip(held, value)
    elif isinstance(value, dict) and value and all(type(name) is str for name in value):
        pairs = ((clean(name), each) for name, each in value.items())
    else:
        return
    found = [*pairs]
    fits = all(_is_tensor(each) and name in held and each.shape == held[name].shape for name, each in found)
    if fits and not any(each.data_ptr() in own or each.requires_grad for _, each in found):
        yield from found


def _row(kind: Any, name: str, tensor: Any) -> tuple[HeldTensor, Any]:
    return HeldTensor(kind, name, tuple(tensor.shape), hasattr(tensor, "placements")), tensor


def _is_tensor(value: Any) -> bool:
    return isinstance(value, sys.modules["torch"].Tensor)


def sketch(context: RankContext, value: Any) -> TensorSketch | None:
    """Return a few numbers that stand for a tensor, or for this rank's part of it; None if they cannot be read."""
    if not _is_tensor(value):
        number = float(value)
        return TensorSketch(f"{number!r}", abs(number), (number,))
    torch: Any = sys.modules["torch"]
    with torch.no_grad():
        tensor = value.to_local() if hasattr(value, "to_local") else value
        tensor = tensor.wait() if hasattr(tensor, "wait") else tensor
        sums = sums_of(context, tensor)
        if sums is None or tensor.is_meta:
            return None
        flat = tensor.detach().reshape(-1)
        flat = flat[:: 1 + flat.numel() // _HASHED]
        norm = float(torch.linalg.vector_norm(flat.to("cpu", torch.float64))) if flat.numel() else 0.0
        digest = hashlib.blake2b(bytes_of(flat), digest_size=8).hexdigest()
    return TensorSketch(digest, _finite(norm), tuple(_finite(float(f"{each:.9g}")) for each in sums.tolist()))


def _finite(number: float) -> float:
    return number if math.isfinite(number) else 1e300
