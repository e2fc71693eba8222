"""Fold the batches that ranks took into strips that show which rank drew which sample in which epoch."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from compose_sim.core.events.observations import Observed
from compose_sim.node.records.data import Batch, LoaderInfo

_WIDTH = 480  # samples of one strip


def sample_strips(observed: Observed) -> list[dict[str, Any]]:
    """Return, by loader and epoch, the samples that each rank drew in order, and how often all ranks together drew each."""
    drawn: dict[tuple[int, int], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    loaders: dict[int, LoaderInfo] = {}
    for rank in observed:
        for known in rank.of(LoaderInfo):
            loaders.setdefault(known.loader, known)
        for batch in rank.of(Batch):
            if batch.indices:
                drawn[batch.loader, batch.epoch][rank.rank] += batch.indices
    strips: list[dict[str, Any]] = []
    for (number, epoch), ranks in sorted(drawn.items()):
        if number not in loaders:
            continue
        info = loaders[number]
        counts = Counter(index for indices in ranks.values() for index in indices)
        before = drawn.get((number, epoch - 1))
        strips.append(
            {
                **{"loader": number, "epoch": epoch, "data": info.data, "length": info.length},
                "at": list(info.made or info.at or ()),
                "drawn": counts.total(),
                "distinct": len(counts),
                "repeated": sum(1 for count in counts.values() if count > 1),
                "as_before": before is not None and all(_begins_alike(ranks[r], before.get(r, [])) for r in ranks),
                "is_part": info.threshold is not None,
                "ranks": {rank: _thinned(indices) for rank, indices in sorted(ranks.items())},
            }
        )
    return strips


def _begins_alike(one: list[int], other: list[int]) -> bool:
    shorter = min(len(one), len(other))
    return shorter > 1 and one[:shorter] == other[:shorter]


def _thinned(indices: list[int]) -> list[int]:
    return [indices[n * len(indices) // _WIDTH] for n in range(_WIDTH)] if len(indices) > _WIDTH else indices
