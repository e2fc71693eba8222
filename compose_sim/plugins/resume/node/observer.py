"""Record, in `check --resume`, what each step starts from: tensors, settings, samples and random numbers; and when state is moved.

A step is one that follows a backward pass: libraries make empty steps to let an optimizer allocate its state.
"""

from __future__ import annotations

import json
import os
import sys
import weakref
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ....node.rank import tracked
from ....node.rank.context import RankContext, place
from ....node.rank.observers.loaders import iteration_of
from ....node.rank.observers.optimizers import follow_gradients
from ....node.rank.observers.samples import rows_of
from ....node.rank.torch_hooks import features, points, updates_by_hand
from ....node.records.resumption import HeldState, HeldTensor, HeldTensors, SeenBatch, When
from . import interruption, moves
from .holdings import Holdings, sketch
from .private_folders import guard, replace_folders
from .randoms import random_states

SETTINGS = "COMPOSESIM_RESUME"  # a variable: JSON, see `compose_sim/plugins/resume/core/options.py`
_STATE = "resume.state"
_MAX_STEPS = 2000  # that are recorded
_RECENT = 32  # batches
_ELEMENTS = 8  # of a batch


@dataclass
class Watched:
    """What has happened in this rank since the last step."""

    settings: dict[str, Any]
    holdings: Holdings = field(default_factory=Holdings)
    steps: int = 0
    table: int = -1
    rows: tuple[HeldTensor, ...] = ()
    batches: list[SeenBatch] = field(default_factory=list)
    taken: deque[tuple[SeenBatch, set[tuple[int, ...]]]] = field(default_factory=lambda: deque(maxlen=_RECENT))
    backwards: int = 0
    loss: float | None = None
    awaits_input: bool = True
    optimizer: Any = None  # a weak reference to the last one
    stepping: int = 0  # the id of the one whose step is running

    def forget(self) -> None:
        """Forget the backward passes so far: a step has used them, or they belong to none."""
        self.batches, self.backwards, self.loss, self.awaits_input = [], 0, None, True


def install() -> None:
    features.WITHOUT["resume"] = "the state of steps is not recorded"


def enter() -> None:
    """Let the rank see its own folders in the place of the user's, or end it."""
    folders = _read_settings().get("folders")
    if not folders:
        return
    try:
        replace_folders(folders)
    except OSError as error:
        raise SystemExit(
            f"composesim: {', '.join(folders)} cannot be replaced for this process: {error.strerror}. Try: --engine docker"
        ) from None


def begin(context: RankContext) -> None:
    settings = _read_settings()
    if not settings:
        return
    context.memory[_STATE] = Watched(settings)
    if "roots" in settings:
        context.memory["resume.refuse"] = guard(settings["roots"], settings["suffixes"], settings["refusal"])
    points.BATCH_TAKEN.subscribe(_take)
    points.MODULE_CALLED.subscribe(_module_called)
    points.BACKWARD.subscribe(_backward)
    points.SCALER_STEPS.subscribe(_scale)
    follow_gradients(_before_step, lambda _: None)
    points.AFTER_STEP.subscribe(_after_step)
    points.OPTIMIZER_MADE.subscribe(_made)
    updates_by_hand.follow(context)
    moves.follow()
    if settings.get("half"):
        interruption.follow_opens(context, context.memory[_STATE])


def end(context: RankContext) -> None:
    watched: Watched | None = context.memory.get(_STATE)
    optimizer = watched.optimizer() if watched is not None and watched.optimizer is not None else None
    if watched is not None and optimizer is not None:
        _note(context, watched, optimizer, "end")


def _read_settings() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(os.environ.get(SETTINGS) or "{}")
    return found


def _made(context: RankContext, call: points.TorchCall) -> None:
    """Forget backward passes before there was an optimizer: they were no training."""
    watched: Watched = context.memory[_STATE]
    if not watched.steps and not updates_by_hand.stands_in(call.owner):
        watched.forget()


def _take(context: RankContext, call: points.TorchCall) -> points.Steps:
    watched: Watched = context.memory[_STATE]
    _may_interrupt(context, watched)
    batch = yield
    iteration = iteration_of(call.owner)
    numbers = (iteration.loader.number, iteration.epoch) if iteration is not None else (-1, 0)
    indices = _in_whole(iteration.loader.owner(), iteration.taken) if iteration is not None else None
    rows = rows_of(batch)
    seen = SeenBatch(*numbers, indices, rows[0] if rows else None)
    watched.taken.append((seen, {rows[0] for each in _elements(batch) if (rows := rows_of(each)) is not None}))


def _in_whole(loader: Any, indices: list[int] | None) -> tuple[int, ...] | None:
    """Return the indices in the whole data set: a script may skip samples by a Subset of the others."""
    found = indices
    data_set: Any = getattr(loader, "dataset", None)
    while found and type(data_set) is sys.modules["torch"].utils.data.Subset:
        if type(data_set.indices) not in (list, tuple, range) or not max(found) < len(data_set.indices):
            break
        found = [int(data_set.indices[each]) for each in found]
        data_set = data_set.dataset
    return tuple(found) if found is not None else None


def _elements(batch: Any) -> list[Any]:
    values = (
        [*batch.values()] if isinstance(batch, Mapping) else list(batch) if isinstance(batch, (list, tuple)) else []
    )
    return [batch, *values[:_ELEMENTS]]


def _module_called(context: RankContext, _: Any, given: Any) -> None:
    watched: Watched = context.memory[_STATE]
    if not watched.awaits_input or not sys.modules["torch"].is_grad_enabled():
        return
    _may_interrupt(context, watched)
    rows = rows_of(given)
    if rows is None:
        return
    watched.awaits_input = False
    match = next((seen for seen, hashes in reversed(watched.taken) if rows[0] in hashes), None)
    if match is None and watched.taken:  # the script has changed the samples of the last batch
        last, _ = watched.taken[-1]
        match = last if last.indices is not None and len(last.indices) == len(rows[0]) else None
    loader, epoch, indices = match[:3] if match is not None else (-1, 0, None)
    watched.batches.append(SeenBatch(loader, epoch, indices, rows[0]))


def _backward(context: RankContext, call: points.TorchCall) -> points.Steps:
    watched: Watched = context.memory[_STATE]
    _may_interrupt(context, watched)
    root = points.root_of(call)
    if getattr(root, "numel", None) is not None and root.numel() == 1:
        watched.loss = (watched.loss or 0.0) + float(root.item())
    yield
    watched.backwards += 1
    watched.awaits_input = True


def _scale(context: RankContext, call: points.TorchCall) -> points.Steps:
    watched: Watched = context.memory[_STATE]
    watched.holdings.scaler = weakref.ref(call.owner)
    steps = watched.steps
    yield
    if watched.steps == steps:  # gradients overflowed, and no step will use them
        watched.forget()


def _before_step(context: RankContext, optimizer: Any) -> None:
    """Note what the step uses, when all gradients are there: an optimizer may compute them in a closure."""
    watched: Watched = context.memory[_STATE]
    if not watched.backwards or watched.stepping:  # it allocates state, or is part of another
        return
    watched.stepping, watched.optimizer = id(optimizer), weakref.ref(optimizer)
    if watched.steps < _MAX_STEPS:
        _note(context, watched, optimizer, "step")


def _after_step(context: RankContext, optimizer: Any, *_: Any) -> None:
    watched: Watched = context.memory[_STATE]
    if watched.stepping != id(optimizer):
        return
    watched.steps, watched.stepping = watched.steps + 1, 0
    watched.forget()
    context.flush()


def _may_interrupt(context: RankContext, watched: Watched) -> None:
    """Interrupt the rank if it has made the steps: between two steps, when the script has done all that belongs to the first."""
    wanted = watched.settings.get("interrupt")
    if not wanted or watched.backwards or watched.steps != wanted["step"]:
        return
    watched.settings["interrupt"] = None
    optimizer = watched.optimizer() if watched.optimizer is not None else None
    if optimizer is not None:
        context.guard(__name__, _note_interrupted, watched, optimizer)
    interruption.interrupt(context, wanted, watched.steps)


def _note_interrupted(context: RankContext, watched: Watched, optimizer: Any) -> None:
    _note(context, watched, optimizer, "interrupted")


def _note(context: RankContext, watched: Watched, optimizer: Any, when: When) -> None:
    found = watched.holdings.tensors(optimizer)
    rows = tuple(row for row, _ in found)
    if rows != watched.rows:
        watched.table, watched.rows = watched.table + 1, rows
        context.note(HeldTensors(watched.table, rows))
    context.note(
        HeldState(
            moment=when,
            step=watched.steps,
            optimizer=tracked.optimizers.number(optimizer),
            table=watched.table,
            sketches=tuple(sketch(context, value) for _, value in found),
            groups=tuple(_settings(group) for group in optimizer.param_groups),
            batches=tuple(watched.batches),
            backwards=watched.backwards,
            loss=watched.loss,
            random=random_states(),
            at=place(),
        )
    )


def _settings(group: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a parameter group; those on a device are left there."""
    found: dict[str, float] = {}
    for key, value in group.items():
        values = value if isinstance(value, (list, tuple)) else [value]
        for number, each in enumerate(values if key != "params" else ()):
            each = each.item() if getattr(each, "is_cpu", False) and each.numel() == 1 else each
            if isinstance(each, (bool, int, float)):
                found[key if len(values) == 1 else f"{key}[{number}]"] = float(each)
    return found
