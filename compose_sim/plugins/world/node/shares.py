"""Find which samples each rank of a world reads, by iterating the samplers of one rank as those of the others.

A sampler that holds its rank in an attribute is copied for each share, and the copy gets that number; one that asks torch is told it.
What the copies yield is compared with what the ranks that really ran have read. Any other sampler is iterated by every rank: they run
up to their first batch.
"""

from __future__ import annotations

import copy
import itertools
import zlib
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch.distributed as dist

Batches = list[list[int]]
MOST_LISTED = 4096  # samples whose numbers are reported one by one


def batches_of(loader: Any, batch_sampler: Any = None) -> Batches:
    """Return the indices of each batch that a loader would draw in an epoch. Raise TypeError if they are no numbers."""
    source = batch_sampler if batch_sampler is not None else loader.batch_sampler
    if source is None:
        return [[_number(each)] for each in loader.sampler]
    return [[_number(each) for each in batch] for batch in source]


def _number(value: Any) -> int:
    return int(value)


def digest(batches: Batches) -> int:
    """Return a hash of batches in order."""
    value = 0
    for batch in batches:
        value = zlib.crc32(array("q", [len(batch), *batch]).tobytes(), value)
    return value


def holder(loader: Any) -> Any:
    """Return the sampler of a loader that holds the number of shares and its own; None if there is none."""
    for each in samplers(loader):
        held = getattr(each, "__dict__", {})
        shares, rank = held.get("num_replicas"), held.get("rank")
        if type(shares) is int and type(rank) is int and 0 <= rank < shares:
            return each
    return None


def samplers(loader: Any) -> list[Any]:
    """Return the loader's samplers, from the outermost to the innermost."""
    found: list[Any] = []
    waiting = [loader.batch_sampler, loader.sampler]
    while waiting and len(found) < 6:
        sampler = waiting.pop(0)
        if sampler is not None and all(sampler is not each for each in found):
            found.append(sampler)
            waiting += [getattr(sampler, name, None) for name in ("batch_sampler", "sampler")]
    return found


def all_shares(loader: Any) -> Iterable[Batches]:
    """Yield the batches of each share, in the order of the shares' numbers, from one loader; nothing has been drawn from it."""
    own = holder(loader)
    count = own.num_replicas
    if type(own).__module__ == "torch.utils.data.distributed" and type(own).__name__ == "DistributedSampler":
        yield from _shares_of_torch(loader, own)
        return
    for share in range(count):
        other, sampler = _copied(loader, own)
        sampler.rank = share
        yield batches_of(loader, other)


def _shares_of_torch(loader: Any, own: Any) -> Iterable[Batches]:
    """Draw one permutation for all shares of torch's own sampler: share r has every n-th sample from the r-th on."""
    whole = copy.copy(own)
    whole.num_replicas, whole.rank, whole.num_samples = 1, 0, own.total_size
    order = [_number(each) for each in whole]
    sampler = loader.batch_sampler
    is_plain = (
        type(sampler).__name__ == "BatchSampler"
        and type(sampler).__module__.startswith("torch.")
        and sampler.sampler is own
    )
    for share in range(own.num_replicas):
        mine = order[share : own.total_size : own.num_replicas]
        if is_plain:
            size = sampler.batch_size
            stop = len(mine) - len(mine) % size if sampler.drop_last else len(mine)
            yield [mine[begin : begin + size] for begin in range(0, stop, size)]
        elif sampler is None:
            yield [[each] for each in mine]
        else:
            other, copied = _copied(loader, own)
            copied.rank = share
            yield batches_of(loader, other)


def told_shares(loader: Any, world: int) -> Iterator[Batches]:
    """Yield the batches of each rank, from copies of a sampler that asks torch for its rank. Raise LookupError if it does not ask."""
    owner = dist.distributed_c10d
    ask, asked = dist.get_rank, False
    try:
        for rank in range(world):

            def tell(group: Any = None, rank: int = rank) -> int:
                nonlocal asked
                asked = True
                return rank if group is None or group is dist.group.WORLD else ask(group)

            dist.get_rank = owner.get_rank = tell
            other, _ = _copied(loader, samplers(loader)[0])
            yield batches_of(loader, other)
            if not asked:
                raise LookupError("the sampler does not ask for its rank")
    finally:
        dist.get_rank = owner.get_rank = ask


def _copied(loader: Any, own: Any) -> tuple[Any, Any]:
    """Return a copy of the loader's sampler, and in it that of `own`, which share the data set."""
    memo: dict[int, Any] = {id(loader.dataset): loader.dataset}
    source = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
    other = copy.deepcopy(source, memo)
    return other, memo[id(own)] if own is not source else other


def summary(shares: Iterable[Batches], length: int | None) -> dict[str, Any]:
    """Return what the shares have in common, and what they leave out."""
    seen: Counter[int] = Counter()
    steps: list[int] = []
    sizes: list[int] = []
    digests: list[int] = []
    listed: list[list[int]] = []
    for batches in shares:
        flat = list(itertools.chain.from_iterable(batches))
        seen.update(flat)
        steps.append(len(batches))
        sizes.append(len(flat))
        digests.append(digest(batches))
        listed.append(flat)
    repeated = sum(count - 1 for count in seen.values())
    small = sum(sizes) <= MOST_LISTED
    return {
        "shares": len(steps),
        "length": length,
        "distinct": len(seen),
        "repeated": repeated,
        "dropped": None if length is None else max(0, length - len(seen)),
        "steps": [min(steps, default=0), max(steps, default=0)],
        "samples": [min(sizes, default=0), max(sizes, default=0)],
        "digests": digests,
        "listed": listed if small else None,
    }


def map_of(
    witnesses: Sequence[tuple[int, int]], world: int, shares: int, coordinates: Sequence[Sequence[int]]
) -> list[int] | None:
    """
    Return the share of each rank, from the shares of some ranks (pairs of rank and share); None unless exactly one way fits.

    Ways: every `shares`-th rank, neighbouring ranks, or the coordinate in a dimension of a mesh.
    """
    ways = [
        tuple(rank % shares for rank in range(world)),
        *([tuple(rank // (world // shares) for rank in range(world))] if world % shares == 0 else []),
        *(tuple(each) for each in coordinates if len(each) == world),
    ]
    fitting = {way for way in ways if all(way[rank] == share for rank, share in witnesses)}
    return list(fitting.pop()) if len(fitting) == 1 else None
