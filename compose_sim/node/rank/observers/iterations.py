"""Which of the script's loaders is this, in which of its epochs, and what does it say of itself?

A loader is the same in every epoch, though scripts make a new one, or a new iterator, for each: it is known by where it is made
and by what it loads.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from collections import deque
from typing import Any

from ..context import Watch
from .samples import fingerprint, generators_in

_LOADERS = "batches.loaders"
_Limits = tuple[int, int, int]  # epochs, batches of an epoch whose rows are looked at, indices of an epoch
_LIMITS: dict[str, _Limits] = {"": (2, 6, 20_000)}
_THOROUGH: _Limits = (8, 64, 50_000)


_made: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()  # where the script makes each loader


class Loader:
    """One loader of the script's, in all its epochs."""

    def __init__(self, number: int, loader: Any, limits: _Limits) -> None:
        self.number, self.limits = number, limits
        self.owner = _reference(loader)
        self.epochs = self.most_batches = 0
        self.groups: list[Any] = []  # of ranks, for each DDP model that is trained on it
        self.iteration: Iteration | None = None
        self.generators = generators_in([loader.dataset, loader.collate_fn])
        self.threshold = 1 << 32

    def keep_of(self, length: int | None) -> None:
        """Of a large data set, every rank keeps the same few samples."""
        if length and length > self.limits[2]:
            self.threshold = (self.limits[2] << 32) // length

    def kept(self, indices: list[int]) -> list[int]:
        if self.threshold >= 1 << 32:
            return indices
        return [index for index in indices if (index * 2654435761) & 0xFFFFFFFF < self.threshold]


class Iteration:
    """One epoch of a loader: what was drawn for it, taken from it, and done with it."""

    def __init__(self, loader: Loader, at: Any, steps: int) -> None:
        self.loader, self.at, self.steps = loader, at, steps
        self.epoch = loader.epochs
        self.drawn: deque[list[int] | None] = deque()
        self.batches = self.indices = self.kept = self.order = self.forwards = self.synchronised = 0
        self.last = -1
        self.ascending, self.opaque, self.used = True, False, False
        self.exhausted = self.trained = self.told_trained = False
        self.companion: Iteration | None = None  # the other one in `zip(loader, other)`
        self.fetches = 0  # in this process, of what randomness looked at

    def facts(self) -> dict[str, Any]:
        order = self.order if self.indices and not self.opaque else None
        return {
            **{"loader": self.loader.number, "epoch": self.epoch, "batches": self.batches, "trained": self.trained},
            **{"forwards": self.forwards, "synchronised": self.synchronised, "exhausted": self.exhausted},
            **{"drawn": self.indices, "order": order, "ascending": self.ascending},
        }


def remember_place(_: Watch, loader: Any, at: Any) -> None:
    if _reference(loader) is not None and at is not None:
        _made[loader] = at


def _reference(loader: Any) -> Any:
    try:
        hash(loader)
        return weakref.ref(loader)
    except TypeError:
        return None


def known_loaders(watch: Watch) -> dict[Any, Loader]:
    loaders: dict[Any, Loader] = watch.memory.setdefault(_LOADERS, {})
    return loaders


def loader_of(watch: Watch, loader: Any, at: Any) -> Loader:
    """What we know this loader as; what it says of itself is noted once."""
    loaders = known_loaders(watch)
    chain = _chain(loader)
    made = _made.get(loader) if _reference(loader) is not None else None
    names = [type(each).__name__ for each in chain]
    is_iterable = isinstance(loader.dataset, sys.modules["torch"].utils.data.IterableDataset)
    length = None if is_iterable else _length(loader.dataset)
    kind = type(loader.dataset).__name__
    shuffles = [getattr(each, "shuffle", None) for each in chain]
    known_by = (repr(made or at), kind, length, loader.batch_size, *names, *map(repr, shuffles))
    for ordinal in itertools.count():  # others like it that still live are others
        known = loaders.get((*known_by, ordinal))
        if known is None:
            break
        owner = known.owner() if known.owner is not None else None
        if owner is loader or owner is None:
            known.owner = _reference(loader)
            return known
    known = loaders[(*known_by, ordinal)] = Loader(len(loaders), loader, _LIMITS.get(watch.mode, _THOROUGH))
    known.keep_of(length)
    watch.note(
        "loader",
        **{"loader": known.number, "made": made, "at": at, "data": kind, "length": length, "iterable": is_iterable},
        **{"batch_size": loader.batch_size, "drop_last": bool(loader.drop_last), "workers": loader.num_workers},
        **{"threshold": known.threshold if known.threshold < 1 << 32 else None},
        **{"samplers": names, "fingerprint": fingerprint(loader.dataset), "sampling": _sampling(chain)},
        **{"set_epoch": any(callable(getattr(each, "set_epoch", None)) for each in chain)},
        **{"data_set_epoch": callable(getattr(loader.dataset, "set_epoch", None))},
        **{"data_shuffles": getattr(loader.dataset, "shuffle", None) is not False},
    )
    return known


def _chain(loader: Any) -> list[Any]:
    """The loader's samplers, from the outermost to the innermost."""
    found: list[Any] = []
    waiting = [loader.batch_sampler, loader.sampler]
    while waiting and len(found) < 6:  # samplers wrap samplers
        sampler = waiting.pop(0)
        if sampler is not None and all(sampler is not each for each in found):
            found.append(sampler)
            waiting += [getattr(sampler, name, None) for name in ("batch_sampler", "sampler")]
    return found


def _sampling(chain: list[Any]) -> dict[str, Any]:
    """What the samplers say of themselves, as far as it is plain."""
    plain: dict[str, Any] = {}
    for sampler in chain:
        for name in ("num_replicas", "rank", "shuffle", "drop_last", "seed", "replacement"):
            value = getattr(sampler, name, None)
            # Of drop_last the innermost says what the ranks' shares leave out; the loader's own is noted beside.
            if isinstance(value, (bool, int)) and (name == "drop_last" or name not in plain):
                plain[name] = value
        plain["random"] = plain.get("random", False) or hasattr(sampler, "generator")
    return plain


def _length(data_set: Any) -> int | None:
    try:
        return len(data_set)
    except (TypeError, NotImplementedError, AttributeError):
        return None


def epoch_marks(loader: Any) -> list[int]:
    """What the samplers and the data set take the epoch's number to be."""
    plain = [vars(each) for each in (*_chain(loader), loader.dataset) if hasattr(each, "__dict__")]
    return [value for each in plain for name, value in each.items() if "epoch" in name and isinstance(value, int)]
