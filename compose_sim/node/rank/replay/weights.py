"""Compare what a step makes of the weights that models use, however the script reduces gradients and updates: by the difference itself.

The weights are those of the outermost models before a step, and when one of them is called next.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from ...records.replays import HeldWeights, ReplayedUpdate
from ..context import RankContext
from ..observers.models import clean
from .inputs import MAX_ELEMENTS, hash_of

VARIABLE = "COMPOSESIM_REPLAY_WEIGHTS"  # the replay compares these instead of gradients
_FILE = "weights.pt"
Weights = dict[str, torch.Tensor]
_SAME = 1e-5  # relative: what two ways to make the same numbers differ by
_MOVES = 0.01  # of the largest change: a number that changes by more is moved, and not by rounding


def is_on() -> bool:
    """Return whether this replay compares weights."""
    return bool(os.environ.get(VARIABLE))


class WeightRecord:
    """The weights of one rank before the first step, and after each."""

    def __init__(self, context: RankContext, save: Callable[[Any, str], None]) -> None:
        """Wait for the first step; `save` writes a file of the recording."""
        self._context, self._save = context, save
        self._first: Weights | None = None
        self._steps = 0
        self._is_moving = self._is_over = False

    def before(self, models: Iterable[Any]) -> None:
        """Keep the weights before the first step, if they are few."""
        if self._first is None and not self._is_over:
            self._first = weights_of(models)
            self._is_over = self._first is None
        self._is_moving = not self._is_over

    def after(self, find_models: Callable[[], list[Any]]) -> None:
        """Note the weights after a step; the first rank saves those of the first step."""
        if not self._is_moving or self._first is None:
            return
        models = find_models()
        self._is_moving, after = False, weights_of(models)
        self._steps += 1
        if after is None or after.keys() != self._first.keys():
            self._is_over = True
            return
        if self._steps == 1 and not self._context.events.rank:
            self._save({"before": self._first, "after": after}, _FILE)
        buffers = _buffers_of(models)
        self._context.note(
            HeldWeights(_hashes(self._first), _hashes(after), self._steps, _hashes(buffers), tuple(buffers))
        )


class WeightReplay:
    """The same at world size 1."""

    def __init__(self, context: RankContext, folder: Path) -> None:
        """Read what the first rank has saved."""
        path = folder / _FILE
        self._context = context
        self._recorded: dict[str, Weights] = torch.load(path) if path.exists() else {}
        self._before: Weights = {}

    def before(self, models: Iterable[Any]) -> str:
        """Return why the step cannot be compared; "" if it can."""
        held, recorded = weights_of(models), self._recorded.get("before")
        if not held or not recorded or {**held}.keys() != recorded.keys():
            return "at world size 1 the models have other parameters"
        if any(held[name].shape != each.shape for name, each in recorded.items()):
            return "at world size 1 the parameters have other shapes"
        if _distance(held, recorded) > _SAME * _norm(recorded):
            return "at world size 1 the script begins with other weights"
        self._before = held
        self._context.note(HeldWeights(_hashes(held), (), 0))
        return ""

    def after(self, models: Iterable[Any], settings_are_equal: bool) -> None:
        """Note how the update differs from the recorded one."""
        held, recorded = weights_of(models), self._recorded
        if not held or held.keys() != recorded["after"].keys():
            return
        ours = {name: held[name] - each for name, each in self._before.items()}
        theirs = {name: recorded["after"][name] - each for name, each in recorded["before"].items()}
        own, norm = _norm(ours), _norm(theirs)
        if not (own and norm and math.isfinite(own) and math.isfinite(norm)):
            return
        worst = max(theirs, key=lambda name: float((ours[name] - theirs[name]).norm()))
        product = sum(float((ours[name] * each).sum()) for name, each in theirs.items())
        self._context.note(
            ReplayedUpdate(
                worst,
                _distance(ours, theirs) / norm,
                product / (own * norm),
                own / norm,
                settings_are_equal,
                _left(theirs, ours),
            )
        )


def _left(changes: Weights, expected: Weights) -> tuple[tuple[str, int], ...]:
    """Return at the end of which tensors how many numbers wrongly stayed as they were; none if there are some elsewhere too."""
    least = _MOVES * max(float(each.abs().max()) for each in expected.values())
    found = []
    for name, each in changes.items():
        stayed = ((each == 0) & (expected[name].abs() > least)).flatten()
        if count := int(stayed.sum()):
            if not stayed[-count:].all():
                return ()  # by chance: where gradients are noise, Adam makes much of it, but nothing of 0
            found.append((name, count))
    return tuple(found)


def weights_of(models: Iterable[Any]) -> Weights | None:
    """Return copies of the parameters of models; None if there are too many, or if torch shards them."""
    found = {
        f"{number}.{clean(name)}": each
        for number, model in enumerate(models)
        for name, each in model.named_parameters()
        if each.requires_grad
    }
    plain = all(type(each.detach()) is torch.Tensor for each in found.values())
    if not found or not plain or sum(each.numel() for each in found.values()) > MAX_ELEMENTS:
        return None
    return {name: each.detach().to("cpu", torch.float64, copy=True) for name, each in found.items()}


def _hashes(weights: Weights) -> tuple[int, ...]:
    return tuple(map(hash_of, weights.values()))


def _buffers_of(models: Iterable[Any]) -> Weights:
    found = {
        f"{type(model).__name__}.{clean(name)}": each
        for model in models
        for name, each in model.named_buffers()
        if type(each) is torch.Tensor and each.is_floating_point() and each.numel() > 1
    }
    return found if sum(each.numel() for each in found.values()) <= MAX_ELEMENTS else {}


def _norm(weights: Weights) -> float:
    return math.sqrt(sum(float(each.square().sum()) for each in weights.values()))


def _distance(ours: Weights, theirs: Weights) -> float:
    return math.sqrt(sum(float((ours[name] - each).square().sum()) for name, each in theirs.items()))
