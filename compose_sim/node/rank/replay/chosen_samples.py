"""Compare which samples a loader gives at world size 1 with those that all ranks were given: a script may choose them as it trains."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import Any

import torch
from torch.utils.data import Subset

from ...records.record import Place
from ...records.replays import ChosenSamples
from .batch_ids import Passage
from .rng_usage import global_states

_MAX_SAMPLES = 200_000  # of a passage
_SAMPLERS = "torch.utils.data."  # others may change when they are iterated


class Numbering:
    """The samples of a loader by their numbers in the data set of which it has a part."""

    def __init__(self, data: Any) -> None:
        """Keep the indices of each part, which a script does not change but makes anew."""
        self._parts: list[Sequence[Any]] = []
        while type(data) is Subset:
            self._parts.append(data.indices)
            data = data.dataset
        self.base = [type(data).__qualname__, length_of(data)]

    def __call__(self, indices: Iterable[int]) -> list[int]:
        """Return the numbers of samples; none if they cannot be told."""
        try:
            for part in self._parts:
                indices = [part[index] for index in indices]
            return [int(index) for index in indices]
        except (TypeError, ValueError, LookupError, RuntimeError):
            return []


def length_of(sized: Any) -> int | None:
    """Return the length of a data set or loader; None if it has none."""
    try:
        return len(sized)
    except (TypeError, NotImplementedError, AttributeError):
        return None


def random_states() -> list[int]:
    """Return a hash of the state of each global generator: of torch, `random` and NumPy."""
    states = global_states()
    drawn = bytes(states["torch"].tolist()), *(repr(states.get(name)).encode() for name in ("random", "numpy"))
    return list(map(zlib.crc32, drawn))


class Choices:
    """The passages of a replay over loaders whose samples may be chosen by what the training has computed."""

    def __init__(self) -> None:
        """Begin without any."""
        self._first: list[list[int]] = []  # the random states before the first passage: here, and on each rank

    def compared(self, loader: Any, passages: dict[int, Passage], at: Place | None) -> ChosenSamples | None:
        """Return how many samples of all ranks this loader would not give; None if that is not known."""
        states = [random_states(), *(passages[rank].random for rank in sorted(passages))]
        self._first = self._first or states
        numbering = Numbering(loader.dataset)
        by_rank = [list(chain.from_iterable(each.samples.values())) for each in passages.values()]
        recorded = Counter(chain.from_iterable(by_rank))
        holders = Counter(chain.from_iterable(map(set, by_rank)))
        if not recorded or any(each.base != numbering.base for each in passages.values()):
            return None
        own = _drawn(loader) if self._are_alike(states) else None
        if own is None:
            return None
        return ChosenSamples(
            loader=passages[0].loader,
            passage=passages[0].number,
            data=str(numbering.base[0]),
            drawn=sum(recorded.values()),
            shared=sum(count > 1 for count in holders.values()),
            others=sum((recorded - Counter(numbering(own))).values()),
            ended=all(each.ended for each in passages.values()),
            at=at,
        )

    def _are_alike(self, states: list[list[int]]) -> bool:
        """Return whether each generator is in one state everywhere, or has drawn nothing anywhere since the first passage."""
        return all(len(set(now)) == 1 or now == at_first for now, at_first in zip(zip(*states), zip(*self._first)))


def _drawn(loader: Any) -> list[int] | None:
    """Return what the loader's sampler draws, and leave everything as it was."""
    sampler = loader.sampler
    plain = all(type(each).__module__.startswith(_SAMPLERS) for each in (loader.batch_sampler, sampler))
    has_own = any(getattr(each, "generator", None) is not None for each in (loader, sampler))  # of an unknown state
    if not plain or loader.batch_sampler is None or has_own:
        return None
    before = torch.get_rng_state()
    try:
        drawn = list(islice(sampler, _MAX_SAMPLES + 1))
    finally:
        torch.set_rng_state(before)
    return [int(each) for each in drawn] if len(drawn) <= _MAX_SAMPLES else None
