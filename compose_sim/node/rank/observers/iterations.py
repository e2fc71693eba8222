"""Identify the script's loaders and their epochs, and describe them.

A loader counts as the same in every epoch, although scripts make a new one, or a new iterator, for each: it is identified by the
line that makes it and by what it loads.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from collections import deque
from typing import Any

from ...records.data import EpochProgress, LoaderInfo, Phase, Sampling
from ...records.record import Place
from ..context import RankContext
from .samples import codes_in, fingerprint, generators_in, scaled_by_itself, subset_in

_LOADERS = "batches.loaders"
_Limits = tuple[int, int, int]  # epochs, batches per epoch whose rows are hashed, indices per epoch
_LIMITS: dict[str, _Limits] = {"": (2, 6, 20_000)}
_THOROUGH: _Limits = (8, 64, 50_000)
_SAMPLING = {"num_replicas": int, "rank": int, "shuffle": bool, "drop_last": bool, "seed": int, "replacement": bool}


_made: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()  # loader -> the line that makes it


class TrackedLoader:
    """One of the script's loaders, through all epochs."""

    def __init__(self, number: int, loader: Any, limits: _Limits) -> None:
        self.number, self.limits = number, limits
        self.owner = _reference(loader)
        self.epochs = self.most_batches = 0
        self.groups: list[Any] = []  # of ranks, for each DDP model that is trained on it
        self.iteration: Iteration | None = None
        self.generators = generators_in([loader.dataset, loader.collate_fn])
        self.threshold = 1 << 32

    def keep_of(self, length: int | None) -> None:
        """Keep only some indices of a large data set, the same ones on every rank."""
        if length and length > self.limits[2]:
            self.threshold = (self.limits[2] << 32) // length

    def kept(self, indices: list[int]) -> list[int]:
        if self.threshold >= 1 << 32:
            return indices
        return [index for index in indices if (index * 2654435761) & 0xFFFFFFFF < self.threshold]


class Iteration:
    """One epoch of a loader: what is drawn for it, taken from it, and done with it."""

    def __init__(self, loader: TrackedLoader, at: Place | None, steps: int) -> None:
        self.loader, self.at, self.steps = loader, at, steps
        self.epoch = loader.epochs
        self.drawn: deque[list[int] | None] = deque()
        self.taken: list[int] | None = None  # the indices of the last batch
        self.batches = self.indices = self.kept = self.order = self.forwards = self.synchronized = 0
        self.last = -1
        self.ascending, self.opaque, self.used = True, False, False
        self.exhausted = self.trained = self.noted_trained = False
        self.companion: Iteration | None = None  # the other loader's in `zip(loader, other)`
        self.fetches = 0  # counted in this process, by randomness.py

    def progress(self, phase: Phase, marks: tuple[int, ...] | None = None) -> EpochProgress:
        return EpochProgress(
            loader=self.loader.number,
            epoch=self.epoch,
            phase=phase,
            batches=self.batches,
            trained=self.trained,
            exhausted=self.exhausted,
            forwards=self.forwards,
            synchronized=self.synchronized,
            drawn=self.indices,
            order=self.order if self.indices and not self.opaque else None,
            ascending=self.ascending,
            marks=marks,
        )


def remember_place(loader: Any, at: Place | None) -> None:
    if _reference(loader) is not None and at is not None:
        _made[loader] = at


def _reference(loader: Any) -> Any:
    try:
        hash(loader)
        return weakref.ref(loader)
    except TypeError:
        return None


def known_loaders(context: RankContext) -> dict[Any, TrackedLoader]:
    loaders: dict[Any, TrackedLoader] = context.memory.setdefault(_LOADERS, {})
    return loaders


def loader_of(context: RankContext, loader: Any, at: Place | None) -> TrackedLoader:
    """Return the tracked loader for this loader; the first time, record what the loader reports about itself."""
    loaders = known_loaders(context)
    chain = _chain(loader)
    made = _made.get(loader) if _reference(loader) is not None else None
    names = tuple(type(each).__name__ for each in chain)
    is_iterable = isinstance(loader.dataset, sys.modules["torch"].utils.data.IterableDataset)
    length = None if is_iterable else _length(loader.dataset)
    kind = type(loader.dataset).__name__
    shuffles = [getattr(each, "shuffle", None) for each in chain]
    known_by = (repr(made or at), kind, length, loader.batch_size, *names, *map(repr, shuffles))
    for ordinal in itertools.count():  # loaders that look alike and exist at the same time are different loaders
        known = loaders.get((*known_by, ordinal))
        if known is None:
            break
        owner = known.owner() if known.owner is not None else None
        if owner is loader or owner is None:
            known.owner = _reference(loader)
            return known
    known = loaders[(*known_by, ordinal)] = TrackedLoader(len(loaders), loader, _LIMITS.get(context.mode, _THOROUGH))
    known.keep_of(length)
    context.note(
        LoaderInfo(
            loader=known.number,
            data=kind,
            made=made,
            at=at,
            length=length,
            iterable=is_iterable,
            batch_size=loader.batch_size,
            drop_last=bool(loader.drop_last),
            threshold=known.threshold if known.threshold < 1 << 32 else None,
            samplers=names,
            sampling=_sampling(chain),
            fingerprint=fingerprint(loader.dataset),
            subset=subset_in(loader.dataset),
            codes=tuple(codes_in(loader.dataset)),
            scaled=scaled_by_itself(loader.dataset) if context.mode == "record" else None,
            set_epoch=any(callable(getattr(each, "set_epoch", None)) for each in chain),
            data_set_epoch=callable(getattr(loader.dataset, "set_epoch", None)),
            data_shuffles=getattr(loader.dataset, "shuffle", None) is not False,
        )
    )
    return known


def _chain(loader: Any) -> list[Any]:
    """Return the loader's samplers, from the outermost to the innermost."""
    found: list[Any] = []
    waiting = [loader.batch_sampler, loader.sampler]
    while waiting and len(found) < 6:  # samplers wrap samplers
        sampler = waiting.pop(0)
        if sampler is not None and all(sampler is not each for each in found):
            found.append(sampler)
            waiting += [getattr(sampler, name, None) for name in ("batch_sampler", "sampler")]
    return found


def _sampling(chain: list[Any]) -> Sampling:
    """Return what the samplers report about themselves in plain numbers."""
    plain: dict[str, Any] = {"random": any(hasattr(sampler, "generator") for sampler in chain)}
    for sampler in chain:
        for name, kind in _SAMPLING.items():
            value = getattr(sampler, name, None)
            # The innermost drop_last shows what the ranks' shares leave out; the loader's own is a field of LoaderInfo.
            if isinstance(value, int) and (name == "drop_last" or name not in plain):
                plain[name] = kind(value)
    return Sampling(**plain)


def _length(data_set: Any) -> int | None:
    try:
        return len(data_set)
    except (TypeError, NotImplementedError, AttributeError):
        return None


def epoch_marks(loader: Any) -> tuple[int, ...]:
    """Return the epoch numbers that the samplers and the data set hold."""
    plain = [vars(each) for each in (*_chain(loader), loader.dataset) if hasattr(each, "__dict__")]
    return tuple(
        int(value) for each in plain for name, value in each.items() if "epoch" in name and isinstance(value, int)
    )
