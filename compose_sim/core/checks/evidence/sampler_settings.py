"""Say which setting of a DistributedSampler makes two ranks see the same samples."""

from __future__ import annotations

from collections.abc import Sequence

from compose_sim.core.checks.evidence.epochs import Loader

_FIX_SHARE = (
    "Leave out `num_replicas` and `rank`: DistributedSampler(data) takes them from the process group; or pass dist.get_world_size() "
    "and dist.get_rank()."
)
_FIX_SEED = (
    "Pass the same `seed` on every rank: a constant, or a number that rank 0 broadcasts; not one from the clock, the process id or "
    "the rank. The sampler itself gives each rank another part."
)
_FIX_EPOCH = "Call `sampler.set_epoch(epoch)` with the same number on every rank."


def wrong_setting(loaders: Sequence[Loader], size: int) -> tuple[str, str]:
    """Return the evidence, to follow a sentence, and the fix, for two ranks of a group of `size`; empty without such a sampler."""
    if any("DistributedSampler" not in loader.info.samplers for loader in loaders):
        return "", ""
    first, second = (loader.info.sampling for loader in loaders)
    ranks = [loader.rank for loader in loaders]
    if first.num_replicas is not None and first.num_replicas != size:
        of = f"num_replicas={first.num_replicas}, but {size} ranks train together"
        both = f" (ranks {ranks[0]} and {ranks[1]} both have rank={first.rank})" if first.rank == second.rank else ""
        return f"; its sampler has {of}{both}", _FIX_SHARE
    if first.rank is not None and first.rank == second.rank:
        return f"; its sampler has rank={first.rank} on both", _FIX_SHARE
    if first.shuffle and first.seed != second.seed:
        return (
            f"; its sampler has seed={first.seed} on rank {ranks[0]} and seed={second.seed} on rank {ranks[1]}",
            _FIX_SEED,
        )
    marks = [{number: epoch.marks for number, epoch in loader.epochs.items()} for loader in loaders]
    for number in sorted(marks[0].keys() & marks[1].keys()):
        if first.shuffle and marks[0][number] != marks[1][number]:
            return f"; set_epoch got other numbers on rank {ranks[0]} than on rank {ranks[1]}", _FIX_EPOCH
    return "", _FIX_SHARE
