"""Join the batches of all ranks along the first dimension, into the batch that a single rank would have had.

A batch is what a DataLoader gives: tensors in tuples, lists, mappings and dataclasses. Nothing is guessed: what cannot be joined
with certainty raises CannotJoin.
"""

from __future__ import annotations

import copy
import dataclasses
import io
import random
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import torch

from . import batches

_PLAIN = (str, bytes, int, float, bool, complex, type(None))


class CannotJoin(Exception):
    """The batches of several ranks cannot be joined; the message says why."""


def join(parts: Sequence[Any]) -> Any:
    """Join the batches of all ranks into one, in the order of ranks."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if any(type(part) is not type(first) for part in parts):
        kinds = ", ".join(dict.fromkeys(type(part).__name__ for part in parts))
        raise CannotJoin(f"ranks have batches of different types ({kinds})")
    if isinstance(first, torch.Tensor):
        return _join_tensors(parts)
    if isinstance(first, _PLAIN):
        if any(part != first for part in parts):
            raise CannotJoin(
                f"ranks have different values in their batches (for example {parts[0]!r} and {parts[1]!r})"
            )
        return first
    if isinstance(first, torch.nn.utils.rnn.PackedSequence):
        raise CannotJoin("packed sequences cannot be joined")
    if isinstance(first, Mapping):
        return _join_mappings(parts)
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*map(join, zip(*parts)))
    if isinstance(first, (list, tuple)):
        return _join_lists(parts)
    if dataclasses.is_dataclass(first):
        names = [field.name for field in dataclasses.fields(first) if field.init]
        joined = {name: join([getattr(part, name) for part in parts]) for name in names}
        return dataclasses.replace(first, **joined)  # type: ignore[type-var]
    raise CannotJoin(f"batches of type {type(first).__name__} cannot be joined")


def distinct(parts: Sequence[Any]) -> Sequence[Any]:
    """Return each batch once if all have equally many copies, as in tensor parallelism, whose ranks share the samples of a replica."""
    copies: dict[bytes, list[Any]] = {}
    for part in parts:
        written = io.BytesIO()
        torch.save(part, written)
        copies.setdefault(written.getvalue(), []).append(part)
    even = len({len(alike) for alike in copies.values()}) == 1
    return [alike[0] for alike in copies.values()] if even else parts


def size(batch: Any) -> int:
    """Return the number of samples in a batch: the first dimension of the first tensor, or the length of a list."""
    for tensor in tensors_in(batch):
        if tensor.ndim:
            return int(tensor.shape[0])
    return len(batch) if isinstance(batch, (list, tuple)) else 0


def compact(batch: Any) -> Any:
    """Return the batch without the memory around each tensor: torch saves a view with everything that it is a view of."""
    if isinstance(batch, torch.Tensor) and type(batch) is torch.Tensor and batch.layout is torch.strided:
        plain = batch.detach()
        whole = plain.untyped_storage().nbytes() <= plain.numel() * plain.element_size()
        return plain if whole else plain.clone()
    if type(batch) in (list, tuple):
        return type(batch)(map(compact, batch))
    if type(batch) is dict:
        return {key: compact(value) for key, value in batch.items()}
    return batch


def weight(batch: Any) -> int:
    """Return the number of bytes in the tensors of a batch."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors_in(batch))


def _join_tensors(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    first = parts[0]
    if any(part.layout is not torch.strided or part.is_nested for part in parts):
        raise CannotJoin("sparse and nested tensors cannot be joined")
    if first.ndim == 0:
        if any(not torch.equal(part, first) for part in parts):
            raise CannotJoin("ranks have different single numbers in their batches")
        return first
    if any(part.shape[1:] != first.shape[1:] or part.dtype != first.dtype for part in parts):
        shapes = ", ".join(dict.fromkeys("×".join(map(str, part.shape)) for part in parts))
        raise CannotJoin(f"ranks have batches of different shapes ({shapes})")
    return torch.cat(list(parts))


def _join_mappings(parts: Sequence[Mapping[Any, Any]]) -> Any:
    first = parts[0]
    if any(part.keys() != first.keys() for part in parts):
        raise CannotJoin("ranks have batches with different keys")
    joined = {key: join([part[key] for part in parts]) for key in first}
    if type(first) is dict:
        return joined
    if not isinstance(first, MutableMapping):
        raise CannotJoin(f"batches of type {type(first).__name__} cannot be joined")
    whole = copy.copy(first)
    for key, value in joined.items():
        whole[key] = value
    return whole


def _join_lists(parts: Sequence[Any]) -> Any:
    """Join a structure such as [x, y] entry by entry, and a list of samples end to end."""
    first = parts[0]
    if all(map(_is_transposed, parts)) and len({len(part) for part in parts}) == 1:
        return tuple(type(column)(entry for part in parts for entry in part[at]) for at, column in enumerate(first))
    if all(len(part) == len(first) for part in parts) and all(map(_is_structure, parts)):
        return type(first)(map(join, zip(*parts)))
    return type(first)(entry for part in parts for entry in part)


def _is_transposed(entries: Sequence[Any]) -> bool:
    """Return whether these are columns of samples, as `tuple(zip(*samples))` makes them."""
    columns = isinstance(entries, tuple) and all(type(entry) in (list, tuple) for entry in entries)
    return columns and len({len(entry) for entry in entries}) == 1


def _is_structure(entries: Sequence[Any]) -> bool:
    if any(isinstance(entry, torch.Tensor) for entry in entries):
        ranks = {entry.ndim for entry in entries if isinstance(entry, torch.Tensor)}
        lengths = {entry.shape[0] for entry in entries if isinstance(entry, torch.Tensor) and entry.ndim}
        all_tensors = all(isinstance(entry, torch.Tensor) for entry in entries)
        return not all_tensors or (ranks != {0} and (len(lengths) == 1 or len(ranks) > 1))
    if any(not isinstance(part, torch.Tensor) for entry in entries if type(entry) in (list, tuple) for part in entry):
        return False  # samples with a number or a text next to the tensor
    leaves = list(tensors_in(list(entries)))
    # In a structure, all tensors share the batch's first dimension; in samples they do not.
    return bool(leaves) and all(leaf.ndim for leaf in leaves) and len({leaf.shape[0] for leaf in leaves}) == 1


def tensors_in(batch: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of a batch, or of anything like it."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from tensors_in(value)
    elif isinstance(batch, (list, tuple)):
        for value in batch:
            yield from tensors_in(value)
    elif dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        for field in dataclasses.fields(batch):
            yield from tensors_in(getattr(batch, field.name, None))


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
