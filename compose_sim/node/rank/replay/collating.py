"""Collate the samples of all ranks again, if their batches cannot be joined: text is padded to the longest of each batch."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch

from . import batches


def collated(loader: Any, shares: Sequence[Sequence[int]], parts: Sequence[Any]) -> Any:
    """Return the batch of the samples of all ranks; None unless these samples also give each rank's batch again."""
    if len(shares) != len(parts) or not all(shares):
        return None
    state = random.getstate()
    try:
        with torch.random.fork_rng(devices=[]):
            samples = [_samples(loader.dataset, share) for share in shares]
            again = [loader.collate_fn(each) for each in samples]
            if not all(map(_are_equal, again, parts)):
                return None  # as with random augmentation
            return loader.collate_fn([sample for each in samples for sample in each])
    except Exception:  # noqa: BLE001 - the script's own code, which expects no such call
        return None
    finally:
        random.setstate(state)


def _samples(data: Any, indices: Sequence[int]) -> list[Any]:
    """Fetch samples as a DataLoader does."""
    fetch = getattr(data, "__getitems__", None)
    return list(fetch(list(indices))) if fetch else [data[index] for index in indices]


def _are_equal(one: Any, other: Any) -> bool:
    mine, theirs = list(batches.tensors_in(one)), list(batches.tensors_in(other))
    return len(mine) == len(theirs) > 0 and all(map(torch.equal, mine, theirs))
