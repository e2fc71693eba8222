"""Record which batches a rank takes from which DataLoader, and which of them it trains on.

Batches are observed in the rank itself when they are taken; workers may have read further.
"""

from __future__ import annotations

import operator
import time
from typing import Any, Callable

from ...records.data import Batch, Join
from ...records.record import Place
from .. import tracked
from ..context import RankContext, place
from ..torch_hooks import points
from .iterations import Iteration, TrackedLoader, epoch_marks, known_loaders, loader_of, remember_place
from .samples import rows_of

ACTIVE, FETCHING, BEGUN = "batches.active", "batches.fetching", "batches.begun"
_NAME = "_composesim_iteration"  # on iterators, which cannot be pickled
_MAX_LINES = 20_000  # of batches: by then the record is sufficient
WHEN_TAKEN: list[Callable[[RankContext], None]] = []  # called when a batch has been taken


def install() -> None:
    points.LOADER_MADE.subscribe(_made)
    points.ITERATOR_MADE.subscribe(_begin)
    points.ITERATOR_RESET.subscribe(_begin_again)
    points.INDEX_DRAWN.subscribe(_draw)
    points.BATCH_TAKEN.subscribe(_take)
    points.JOIN_ENTERED.subscribe(_note_join)


def end(context: RankContext) -> None:
    for loader in known_loaders(context).values():
        _close(context, loader)


def iteration_of(iterator: Any) -> Iteration | None:
    """Return what is known about an iterator of a loader; None if it began before this was a rank."""
    iteration: Iteration | None = iterator.__dict__.get(_NAME)
    return iteration


def indices_of(iterator: Any) -> list[int] | None:
    """Return the indices of the batch that was taken last; None if the loader draws none."""
    iteration = iteration_of(iterator)
    return iteration.taken if iteration is not None else None


def _made(context: RankContext, call: points.TorchCall) -> points.Steps:
    yield
    tracked.loaders.number(call.owner)
    remember_place(call.owner, place())


def _begin(context: RankContext, call: points.TorchCall) -> points.Steps:
    yield
    _begin_iteration(context, call.owner, call.value("loader"), place())


def _begin_again(context: RankContext, call: points.TorchCall) -> points.Steps:
    yield
    iteration = iteration_of(call.owner)
    if iteration is not None and iteration.used:  # with persistent workers
        _begin_iteration(context, call.owner, call.value("loader"), place())


def _draw(_: RankContext, call: points.TorchCall) -> points.Steps:
    index = yield
    iteration = iteration_of(call.owner)
    if iteration is not None:
        _drawn(iteration, index)


def _take(context: RankContext, call: points.TorchCall) -> points.Steps:
    iteration = iteration_of(call.owner)
    if iteration is None:
        return
    _before_fetch(context, iteration)
    began = time.monotonic()
    try:
        batch = yield
    finally:
        if isinstance(call.error, StopIteration):
            _exhausted(context, iteration)
    context.times.work("data", began)
    _fetched(context, iteration, batch)


def _note_join(context: RankContext, call: points.TorchCall) -> None:
    """Record `with Join(…)` and `with model.join()`, in which ranks without batches answer those that have some."""
    context.note(Join(bool(getattr(call.owner, "_enable", True)), place()))


def _begin_iteration(context: RankContext, iterator: Any, loader: Any, at: Place | None) -> None:
    known = loader_of(context, loader, at)
    if known.iteration is not None:
        _close(context, known)
    iteration = Iteration(known, at, context.steps)
    known.iteration, known.epochs = iteration, known.epochs + 1
    iterator.__dict__[_NAME] = context.memory[BEGUN] = iteration
    context.note(iteration.progress("begun", epoch_marks(loader)))


def _drawn(iteration: Iteration, index: Any) -> None:
    iteration.used = True
    if iteration.opaque:
        return
    indices = index if isinstance(index, (list, tuple)) else [index]
    try:
        iteration.drawn.append([operator.index(each) for each in indices])
    except (TypeError, RuntimeError):  # other keys, or none at all: IterableDataset
        iteration.opaque = True
        iteration.drawn.clear()


def _before_fetch(context: RankContext, iteration: Iteration) -> None:
    iteration.used = True
    context.memory[FETCHING] = iteration
    active: Iteration | None = context.memory.get(ACTIVE)
    if active is None:
        return
    together = active is not iteration and active.at == iteration.at and active.steps == context.steps
    if together and active.batches == iteration.batches + 1 > 1:
        iteration.companion = active
    _mark_trained(context, active)


def _mark_trained(context: RankContext, iteration: Iteration | None) -> None:
    """Note that the iteration is trained on if a step has been made since the last batch."""
    if iteration is None or context.steps <= iteration.steps:
        return
    iteration.steps = context.steps
    iteration.trained = True
    if not iteration.noted_trained:
        iteration.noted_trained = True
        context.note(iteration.progress("trained"))
    if iteration.companion is not None:
        _mark_trained(context, iteration.companion)


def _fetched(context: RankContext, iteration: Iteration, batch: Any) -> None:
    context.progress.advance("batches")
    context.memory[ACTIVE] = iteration
    iteration.steps = context.steps
    loader = iteration.loader
    number = iteration.batches
    iteration.batches += 1
    indices = iteration.taken = iteration.drawn.popleft() if iteration.drawn else None
    if indices is not None:
        _follow_order(iteration, indices)
    for function in WHEN_TAKEN:
        function(context)
    if iteration.epoch >= loader.limits[0] and loader.most_batches > number + 3 > 8:
        return  # from now on only an epoch's end matters, since that is when ranks may part
    lines = context.memory["batches.lines"] = context.memory.get("batches.lines", 0) + 1
    if lines > _MAX_LINES:
        return
    kept = rows = shape = None
    if iteration.epoch < loader.limits[0]:
        if indices is not None and iteration.kept < 2 * loader.limits[2]:
            kept = tuple(loader.kept(indices))
            iteration.kept += len(kept)
        if number < loader.limits[1]:
            rows, shape = rows_of(batch) or (None, None)
    context.note(
        Batch(
            loader=loader.number,
            epoch=iteration.epoch,
            batch=number,
            indices=kept,
            rows=rows,
            shape=shape,
            forwards=iteration.forwards,
            synchronized=iteration.synchronized,
        )
    )


def _follow_order(iteration: Iteration, indices: list[int]) -> None:
    iteration.indices += len(indices)
    iteration.order = hash((iteration.order, *indices))  # a hash of numbers is the same in every process
    if iteration.ascending and indices:
        iteration.ascending = iteration.last <= indices[0] and indices == sorted(indices)
        iteration.last = indices[-1]


def _exhausted(context: RankContext, iteration: Iteration) -> None:
    if not iteration.exhausted:
        iteration.exhausted = True
        context.note(iteration.progress("exhausted"))
        context.flush()


def _close(context: RankContext, loader: TrackedLoader) -> None:
    """Close the loader's last iteration: nothing more will be taken from it."""
    iteration, loader.iteration = loader.iteration, None
    if iteration is None:
        return
    loader.most_batches = max(loader.most_batches, iteration.batches)
    _mark_trained(context, context.memory.get(ACTIVE))
    context.note(iteration.progress("closed"))
