"""Which batches does a rank take from which DataLoader, and which of them does it train on?

Observed in the rank itself, while batches are taken: workers may have read further.
"""

from __future__ import annotations

import functools
import operator
import traceback
from types import ModuleType
from typing import Any, Callable

from ...shared.import_hooks import after_import
from ..context import Watch, here, place
from .iterations import Iteration, Loader, epoch_marks, known_loaders, loader_of, remember_place
from .samples import rows_of

ACTIVE, FETCHING, BEGUN = "batches.active", "batches.fetching", "batches.begun"
_OFF = "batches.off"
_NAME = "_composesim_iteration"  # on iterators, which cannot be pickled
_MOST_LINES = 20_000  # of batches: by then a rank's file has shown what it can
WHEN_TAKEN: list[Callable[[Watch], None]] = []  # what else is to be done when a batch was taken


def install() -> None:
    after_import("torch.utils.data.dataloader", _after_dataloader)
    after_import("torch.distributed.algorithms.join", _after_join)


def end(watch: Watch) -> None:
    for loader in known_loaders(watch).values():
        _close(watch, loader)


def guard(function: Callable[..., Any], watch: Watch, *arguments: Any) -> Any:
    """Observe; what cannot be understood ends the observing of data, never the script."""
    if _OFF not in watch.memory:
        try:
            return function(watch, *arguments)
        except Exception:  # noqa: BLE001 - this runs inside somebody's training
            watch.memory[_OFF] = True
            watch.note("observer-failed", observer=__name__, traceback=traceback.format_exc())
    return None


def _after_dataloader(module: ModuleType) -> None:
    """There is no public hook on loading. Patched are the few functions that all loaders and iterators go through."""
    loader_class, iterator_class = module.DataLoader, module._BaseDataLoaderIter
    make, begin, again = loader_class.__init__, iterator_class.__init__, iterator_class._reset
    draw, fetch = iterator_class._next_index, iterator_class.__next__

    @functools.wraps(make)
    def make_observed(self: Any, *arguments: Any, **options: Any) -> None:
        make(self, *arguments, **options)
        watch = here()
        if watch is not None:
            guard(remember_place, watch, self, place())

    @functools.wraps(begin)
    def begin_observed(self: Any, loader: Any, *arguments: Any, **options: Any) -> None:
        begin(self, loader, *arguments, **options)
        watch = here()
        if watch is not None:
            guard(_begin, watch, self, loader, place())

    @functools.wraps(again)
    def again_observed(self: Any, loader: Any, *arguments: Any, **options: Any) -> None:
        again(self, loader, *arguments, **options)
        watch, iteration = here(), self.__dict__.get(_NAME)
        if watch is not None and iteration is not None and iteration.used:  # workers that persist
            guard(_begin, watch, self, loader, place())

    @functools.wraps(draw)
    def draw_observed(self: Any) -> Any:
        index = draw(self)
        watch, iteration = here(), self.__dict__.get(_NAME)
        if watch is not None and iteration is not None:
            guard(_drawn, watch, iteration, index)
        return index

    @functools.wraps(fetch)
    def fetch_observed(self: Any) -> Any:
        watch, iteration = here(), self.__dict__.get(_NAME)
        if watch is None or iteration is None:
            return fetch(self)
        guard(_before_fetch, watch, iteration)
        try:
            batch = fetch(self)
        except StopIteration:
            guard(_exhausted, watch, iteration)
            raise
        guard(_fetched, watch, iteration, batch)
        return batch

    loader_class.__init__ = make_observed
    iterator_class.__init__, iterator_class._reset = begin_observed, again_observed
    iterator_class._next_index, iterator_class.__next__ = draw_observed, fetch_observed


def _after_join(module: ModuleType) -> None:
    """`with Join(…)` and `with model.join()`: from then on, ranks without batches answer those that have some."""
    enter = module.Join.__enter__

    @functools.wraps(enter)
    def enter_observed(self: Any) -> Any:
        watch = here()
        if watch is not None:
            guard(_note_join, watch, getattr(self, "_enable", True), place())
        return enter(self)

    module.Join.__enter__ = enter_observed


def _note_join(watch: Watch, enabled: bool, at: Any) -> None:
    watch.note("join", enabled=bool(enabled), at=at)


def _begin(watch: Watch, iterator: Any, loader: Any, at: Any) -> None:
    known = loader_of(watch, loader, at)
    if known.iteration is not None:
        _close(watch, known)
    iteration = Iteration(known, at, watch.steps)
    known.iteration, known.epochs = iteration, known.epochs + 1
    iterator.__dict__[_NAME] = watch.memory[BEGUN] = iteration
    watch.note("epoch", phase="begun", **iteration.facts(), marks=epoch_marks(loader), steps=watch.steps)


def _drawn(_: Watch, iteration: Iteration, index: Any) -> None:
    iteration.used = True
    if iteration.opaque:
        return
    indices = index if isinstance(index, (list, tuple)) else [index]
    try:
        iteration.drawn.append([operator.index(each) for each in indices])
    except (TypeError, RuntimeError):  # keys of another kind, or none at all: IterableDataset
        iteration.opaque = True
        iteration.drawn.clear()


def _before_fetch(watch: Watch, iteration: Iteration) -> None:
    iteration.used = True
    watch.memory[FETCHING] = iteration
    active: Iteration | None = watch.memory.get(ACTIVE)
    if active is None:
        return
    together = active is not iteration and active.at == iteration.at and active.steps == watch.steps
    if together and active.batches == iteration.batches + 1 > 1:
        iteration.companion = active
    _mark_trained(watch, active)


def _mark_trained(watch: Watch, iteration: Iteration | None) -> None:
    """A step was made with the batch that was taken last."""
    if iteration is None or watch.steps <= iteration.steps:
        return
    iteration.steps = watch.steps
    iteration.trained = True
    if not iteration.told_trained:
        iteration.told_trained = True
        watch.note("epoch", phase="trained", **iteration.facts())
    if iteration.companion is not None:
        _mark_trained(watch, iteration.companion)


def _fetched(watch: Watch, iteration: Iteration, batch: Any) -> None:
    watch.progress.advance("batches")
    watch.memory[ACTIVE] = iteration
    iteration.steps = watch.steps
    loader = iteration.loader
    number = iteration.batches
    iteration.batches += 1
    indices = iteration.drawn.popleft() if iteration.drawn else None
    if indices is not None:
        _follow_order(iteration, indices)
    for function in WHEN_TAKEN:
        function(watch)
    if iteration.epoch >= loader.limits[0] and loader.most_batches > number + 3 > 8:
        return  # only an epoch's end, where ranks may part, is of interest any more
    lines = watch.memory["batches.lines"] = watch.memory.get("batches.lines", 0) + 1
    if lines > _MOST_LINES:
        return
    data: dict[str, Any] = {"loader": loader.number, "epoch": iteration.epoch, "batch": number}
    if iteration.epoch < loader.limits[0]:
        kept = None if indices is None else loader.kept(indices)
        if kept is not None and iteration.kept < 2 * loader.limits[2]:
            data["indices"] = kept
            iteration.kept += len(kept)
        found = rows_of(batch) if number < loader.limits[1] else None
        if found is not None:
            data["rows"], data["shape"] = found
    watch.note("batch", **data, forwards=iteration.forwards, synchronised=iteration.synchronised)


def _follow_order(iteration: Iteration, indices: list[int]) -> None:
    iteration.indices += len(indices)
    iteration.order = hash((iteration.order, *indices))  # of numbers: the same in every process
    if iteration.ascending and indices:
        iteration.ascending = iteration.last <= indices[0] and indices == sorted(indices)
        iteration.last = indices[-1]


def _exhausted(watch: Watch, iteration: Iteration) -> None:
    if not iteration.exhausted:
        iteration.exhausted = True
        watch.note("epoch", phase="exhausted", **iteration.facts())
        watch.flush()


def _close(watch: Watch, loader: Loader) -> None:
    """Nothing more will be taken from the loader's last iteration."""
    iteration, loader.iteration = loader.iteration, None
    if iteration is None:
        return
    loader.most_batches = max(loader.most_batches, iteration.batches)
    _mark_trained(watch, watch.memory.get(ACTIVE))
    watch.note("epoch", phase="closed", **iteration.facts())
