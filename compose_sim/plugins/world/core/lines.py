"""Say what a large world would look like."""

from __future__ import annotations

from collections.abc import Iterator

from compose_sim.core.text import format_bytes
from compose_sim.plugins.world.core.world import CollectiveBytes, PlannedRank, PlannedWorld, SampleSets, ranks_in_words

_WIDTH = 9


def lines(found: PlannedWorld) -> Iterator[str]:
    """Yield the lines for people."""
    nodes = found.world // found.per_node
    yield _line("world", f"{found.world:,} ranks: {nodes:,} nodes × {found.per_node} (--nproc-per-node)")
    yield from _sample_lines(found)
    alike: dict[tuple[str, ...], list[int]] = {}
    for rank in found.ranks:
        alike.setdefault(tuple(_rank_lines(rank, found.world)), []).append(rank.rank)
    for (outcome, *rest), ranks in alike.items():
        yield ""
        yield f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))}"
        yield from (outcome, *rest)
    yield ""
    yield from _limits(found)


def _line(key: str, text: str) -> str:
    return f"{key:<{_WIDTH}} {text}"


def _sample_lines(found: PlannedWorld) -> Iterator[str]:
    loader = next((each.loaders[0] for each in found.ranks if each.loaders), None)
    sets = found.samples
    if loader is None or sets is None:
        why = (loader.opaque or "no rank reached its first batch") if loader else "no DataLoader was iterated"
        yield _line("samples", f"not known: {why}")
        return
    sampler = next((name for name in loader.samplers if name != "BatchSampler"), "no sampler")
    of = f"{sets.length:,} samples" if sets.length is not None else "samples"
    yield _line("samples", f"{of} of the loader at {loader.at} ({sampler}), {_shares(sets, found.world)}")
    if sets.examined < found.world:
        yield _line("", f"! this is of ranks 0 to {sets.examined - 1:,}: the others were not reached in time")
    yield _line("", f"{_overlap(sets)}; {_rest(sets)}; {_steps(sets, found.world)}")


def _shares(sets: SampleSets, world: int) -> str:
    size = _range(sets.samples)
    if sets.shares < world and sets.way == "copies":
        return f"{sets.shares:,} shares of {size}, each read by {world // sets.shares} ranks"
    return f"{size} per rank"


def _overlap(sets: SampleSets) -> str:
    if not sets.repeated:
        return "✔ disjoint"
    if sets.overlaps:
        return f"! ranks read the same samples: {sets.repeated:,} draws repeat one"
    unit = "one" if sets.repeated < sets.shares else "a batch"
    return f"✔ disjoint, except {sets.repeated:,} repeated draws: fewer than {unit} per share, as padding makes"


def _rest(sets: SampleSets) -> str:
    if sets.dropped is None:
        return "the data set has no length" if sets.length is None else "not known whether all samples are read"
    return f"! {sets.dropped:,} are read by no rank" if sets.dropped else "✔ complete"


def _steps(sets: SampleSets, world: int) -> str:
    fewest, most = sets.steps
    if fewest != most:
        return f"✘ {fewest} to {most} steps per epoch: ranks with more of them would wait for ever"
    if not most:
        return "✘ no step per epoch: the shares are smaller than a batch"
    return f"✔ {most:,} step{'s'[: most > 1]} per epoch on {'every rank' if sets.examined == world else 'each of them'}"


def _range(pair: tuple[int, int]) -> str:
    return f"{pair[0]:,}" if pair[0] == pair[1] else f"{pair[0]:,} to {pair[1]:,}"


def _rank_lines(rank: PlannedRank, world: int) -> Iterator[str]:
    yield _line("", _outcome(rank))
    if rank.why_real:
        yield _line("", f"with real tensors, because fake ones failed: {rank.why_real}")
    if rank.peak:
        yield _line("peak", f"{format_bytes(rank.peak)} of tensors")
    named = _named_groups(rank, world)
    for mesh in rank.meshes:
        shape = " × ".join(f"{name} {size}" for name, size in zip(mesh.names, mesh.shape, strict=True))
        own = ", ".join(f"{name} {number}" for name, number in zip(mesh.names, mesh.own, strict=True))
        yield _line("mesh", f"{shape}; this rank is at {own}")
    used = {each.group for each in (*rank.per_step, *rank.before)}
    of_meshes = {group for mesh in rank.meshes for group in mesh.groups}
    for group in [each for each in rank.groups if each in used | of_meshes]:
        yield _line("group", f"{named[group]}: {ranks_in_words(rank.groups[group], world)}")
    if rank.builds and not rank.groups:
        yield _line("", "! it made no process group: each rank would train alone")
    if rank.builds:
        yield _line("per step", _bytes_line(rank.per_step, named))
        if rank.once:
            yield _line("", f"once, in the second step: {_bytes_line(rank.once, named)}")
        yield _line("before", f"until the first step: {_bytes_line(rank.before, named)}")


def _outcome(rank: PlannedRank) -> str:
    at = f" ({rank.at})" if rank.at else ""
    if rank.outcome == "stepped":
        return "✔ builds: it made two optimizer steps"
    if rank.outcome == "ended":
        return f"✘ the script ended after {rank.steps} of two optimizer steps"
    return f"✘ {rank.error or rank.outcome}{at}"


def _named_groups(rank: PlannedRank, world: int) -> dict[str, str]:
    """Return a name for each group: the dimension of a mesh, `world`, or its number."""
    named = {group: "world" if len(ranks) == world else f"group {group}" for group, ranks in rank.groups.items()}
    for mesh in rank.meshes:
        named |= dict(zip(mesh.groups, mesh.names, strict=True))
    return named


def _bytes_line(amounts: tuple[CollectiveBytes, ...], named: dict[str, str]) -> str:
    if not amounts:
        return "no collectives"
    return "; ".join(
        f"{each.calls} {each.kind} in {named.get(each.group, each.group)}: {_given(each)}" for each in amounts
    )


def _given(each: CollectiveBytes) -> str:
    if each.given == each.received:
        return f"{each.given:,} bytes"
    return f"gives {each.given:,} bytes, gets {each.received:,}"


def _limits(found: PlannedWorld) -> Iterator[str]:
    """Yield what was not seen."""
    ran = ", ".join(str(each.rank) for each in found.ranks)
    values = sorted({each for rank in found.ranks for each in rank.values})
    branches = f"branches on values ({', '.join(values)}: 1 was taken)" if values else "branches on values"
    yield _line("not seen", f"numbers, and so {branches}; what collectives of objects carry; time")
    yield _line(
        "", f"ranks other than {ran}, except for their samples; epochs after the first; loaders after the first"
    )
