"""Do all ranks of a group issue the same collectives in the same order?"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from compose_sim.core.checks import Case, Result, failed, not_applicable, passed
from compose_sim.core.events.observations import Observation, Observed, RankObserved

QUESTION = "Do all ranks of a group issue the same collectives in the same order?"

_FIX = (
    "Let every rank of the group call the same collectives in the same order: move the call out of a branch that only some ranks take "
    "(`if rank == 0:` around it, an early `continue`, `break` or `return`), and keep only what is done with its result inside."
)
_FIX_VALUE = (
    "Give the same {what} on every rank: a collective pairs what the ranks give it by order alone, and checks nothing."
)
_EQUAL_SHAPES = ("broadcast", "all_reduce", "reduce", "all_gather_into_tensor", "reduce_scatter_tensor")
_EQUAL_LISTS = ("all_reduce_coalesced", "reduce_scatter")
# What a rank says in which another's end, or another's data, broke a collective.
_NETWORK = re.compile(r"gloo|c10d|nccl|NCCL|closed by peer|reset by peer|[Tt]imed? ?out|preamble|Dist[A-Z]\w*Error")


@dataclass(frozen=True, slots=True)
class Issued:
    """A collective as one rank issued it, and how many forward passes of DDP models came before it."""

    rank: int
    forwards: int
    seen: Observation

    @property
    def op(self) -> str:
        return str(self.seen["op"])

    @property
    def place(self) -> tuple[str, int] | None:
        at = self.seen["at"]
        return (str(at[0]), int(at[1])) if at else None

    def __str__(self) -> str:
        where = f" ({self.place[0].rpartition('/')[2]}, line {self.place[1]})" if self.place else ""
        return f"{self.op}{where}"


@dataclass(frozen=True, slots=True)
class Group:
    """What each member of a process group issued, in order."""

    ranks: tuple[int, ...]
    issued: Mapping[int, Sequence[Issued]]
    forwards: Mapping[int, int]  # of DDP models, in all, by rank


def judge(case: Case) -> Result:
    """Compare, for each group, what its members issued, place by place."""
    observed = case.observed
    if observed.world_size < 2:
        return not_applicable("there is one rank only")
    groups = _groups(observed)
    count = sum(len(issued) for group in groups for issued in group.issued.values())
    if not count:
        return not_applicable("the script issued no collective of its own")
    for group in groups:
        result = _differ(case, group) or _missing(case, group)
        if result:
            return result
    return _later_ones(observed) or passed(f"{count} collectives, the same in the same order on all ranks of a group")


def _groups(observed: Observed) -> list[Group]:
    """Groups of two ranks or more; those of the same ranks are told apart by their names."""
    found: dict[tuple[tuple[int, ...], str], dict[int, list[Issued]]] = {}
    forwards = {}
    for rank in observed:
        forwards[rank.rank] = 0
        for each in rank.of("collective"):
            op, ranks = str(each["op"]), tuple(each["group"] or ())
            if op.startswith("DDP"):
                forwards[rank.rank] += op == "DDP forward"
            elif len(ranks) > 1:
                key = (ranks, str(each["name"] or ""))
                members = found.setdefault(key, {member: [] for member in ranks if member in observed.ranks})
                members.setdefault(rank.rank, []).append(Issued(rank.rank, forwards[rank.rank], each))
    return [Group(ranks, issued, forwards) for (ranks, _), issued in found.items()]


def _differ(case: Case, group: Group) -> Result | None:
    """The first place where members issued different collectives, or the same ones in a different order among DDP's own."""
    finished = case.verdict == "passed" and len(set(group.forwards.values())) == 1
    for index, together in enumerate(zip(*group.issued.values(), strict=False)):
        first = together[0]
        for other in together[1:]:
            what = _difference(first, other)
            if what and _is_uneven(case, group, first, other):
                return _left_to_uneven_inputs(group)
            if what or (finished and first.forwards != other.forwards):
                return _say_difference(group, index, together, what or "place in the training loop")
        what = _shapes_differ(together)
        if what:
            return _say_difference(group, index, together, what)
    return None


def _difference(first: Issued, other: Issued) -> str:
    """What two ranks should agree on and do not; shapes apart."""
    one, two = first.seen, other.seen
    names = {"op": "collective", "root": "root rank", "reduce": "reduction", "dtype": "dtype", "ranks": "ranks"}
    for key, name in names.items():
        if one[key] != two[key]:
            return name
    if (first.op in _EQUAL_SHAPES and _flat(one["shape"]) != _flat(two["shape"])) or (
        first.op in _EQUAL_LISTS and [_flat(each) for each in one["shape"]] != [_flat(each) for each in two["shape"]]
    ):
        return "shape"
    return ""


def _shapes_differ(together: Sequence[Issued]) -> str:
    """Where shapes may differ when the ranks have agreed on that: whether they have."""
    op = together[0].op
    if op not in ("all_gather", "gather", "scatter"):
        return ""
    by_rank = {each.rank: each.seen for each in together}
    members = sorted(together[0].seen["group"])
    root = together[0].seen["root"]
    for rank, seen in by_rank.items():
        if op != "all_gather" and rank != root:
            continue  # only the root has a list
        expected = seen["peers"] or [seen["shape"]] * len(members)
        for member, shape in zip(members, expected, strict=False):
            if member in by_rank and _flat(by_rank[member]["shape"]) != _flat(shape):
                return "shape"
    return ""


def _flat(shape: Any) -> list[int]:
    """A shape without its ones, which make no difference to what is sent."""
    return [size for size in shape or [] if size != 1]


def _say_difference(group: Group, index: int, together: Sequence[Issued], what: str) -> Result:
    def seen_by(each: Issued) -> str:
        if what == "place in the training loop":
            return f"{each} after {each.forwards} forward passes"
        return f"{each}{_values(each, what)}"

    sides: dict[str, list[int]] = {}
    for each in together:
        sides.setdefault(seen_by(each), []).append(each.rank)
    odd = min(sides, key=lambda side: (len(sides[side]), -sides[side][0]))
    told = "; ".join(f"{_ranks(sides[side])} {side}" for side in sorted(sides, key=lambda side: sides[side]))
    place = next(each.place for each in together if each.rank in sides[odd])
    alone = what in ("collective", "place in the training loop")
    fix = _FIX if alone else _FIX_VALUE.format(what=what)
    return failed(
        f"collective {index + 1} of {_name(group)} differs in its {what}: {told}",
        **_at(place),
        fix=fix,
        ranks=tuple(sides[odd]),
    )


def _values(each: Issued, what: str) -> str:
    key = {"root rank": "root", "reduction": "reduce", "collective": ""}.get(what, what)
    if not key:
        return ""
    value = each.seen[key] or ("SUM" if key == "reduce" else each.seen[key])
    return f" with {what} {value}"


def _missing(case: Case, group: Group) -> Result | None:
    """One member issued more than another: a mistake where the other has ended, or waits in something else."""
    counts = {rank: len(issued) for rank, issued in group.issued.items()}
    shortest, longest = min(counts.values()), max(counts.values())
    if shortest == longest or any(rank.last("collectives") for rank in case.observed):
        return None
    behind = tuple(rank for rank, count in counts.items() if count == shortest)
    ahead = tuple(rank for rank, count in counts.items() if count > shortest)
    extra = group.issued[ahead[0]][shortest]
    if not _is_missed(case, group, behind, ahead):
        return None
    if _is_uneven(case, group, extra, None):
        return _left_to_uneven_inputs(group)
    ended = " and the run passed by luck" if case.verdict == "passed" else ""
    return failed(
        f"{_ranks(ahead)} issued {longest} collectives in {_name(group)}, {_ranks(behind)} only {shortest}{ended}: "
        f"{_ranks(behind)} never called {extra}",
        **_at(extra.place),
        fix=_FIX,
        ranks=behind,
    )


def _is_missed(case: Case, group: Group, behind: Sequence[int], ahead: Sequence[int]) -> bool:
    """Whether the ranks behind would never have come to the collective, had the run gone on."""
    if case.verdict == "passed":
        return True
    if case.verdict == "interrupted":
        return False
    cause = case.cause or {}
    if cause.get("kind") == "exit" and cause.get("rank") in behind:
        return True  # it ended well, and too early
    ranks = case.observed.ranks
    if case.verdict == "failed" and not any(_died_in(ranks[rank], cause) for rank in ahead):
        return False  # something else ended the run before the ranks behind could come
    return any(_stands_elsewhere(ranks[rank], group) for rank in behind)


def _died_in(rank: RankObserved, cause: Mapping[str, Any]) -> bool:
    """Whether a rank came to its end within a collective: it raised, or its process died there."""
    last = next(reversed(list(rank.of("collective", "collective-failed", "batch", "file"))), None)
    killed = cause.get("rank") == rank.rank and cause.get("kind") == "signal"
    return last is not None and (last.kind == "collective-failed" or (last.kind == "collective" and killed))


def _stands_elsewhere(rank: RankObserved, group: Group) -> bool:
    """Whether a rank has ended well, or what it did last was another collective."""
    outcome = rank.last("outcome")
    if outcome:
        return not outcome["raised"] or bool(_NETWORK.search(outcome["raised"]))
    last = next(reversed(list(rank.of("collective", "batch"))), None)
    issued = group.issued[rank.rank]
    return last is not None and last.kind == "collective" and not (issued and last is issued[-1].seen)


def _is_uneven(case: Case, group: Group, one: Issued, other: Issued | None) -> bool:
    """Whether some ranks have simply had fewer batches than others, and left their loop for what comes after it."""
    if len(set(group.forwards.values())) == 1:
        return False
    least = min(group.forwards.values())
    early = [rank for rank, count in group.forwards.items() if count == least]
    out_of_loop = one if one.rank in early else other
    if out_of_loop is None or out_of_loop.rank not in early:
        return False
    rank = case.observed.ranks[out_of_loop.rank]
    loop = [each for each in rank.of("epoch", "batch") if each.index < out_of_loop.seen.index]
    if not loop:
        return True
    last = loop[-1]
    if last.kind != "epoch" or last["phase"] not in ("exhausted", "closed"):
        return False
    later = [case.observed.ranks[rank] for rank, count in group.forwards.items() if count > least]
    return not all(_has_had_as_many(rank, last) for rank in later)


def _has_had_as_many(rank: RankObserved, ended: Observation) -> bool:
    """Whether this rank has come to the end of the same passage too, after as many batches."""
    ends = [each for each in rank.of("epoch") if each["phase"] in ("exhausted", "closed")]
    return any(all(each[key] == ended[key] for key in ("loader", "epoch", "batches")) for each in ends)


def _left_to_uneven_inputs(group: Group) -> Result:
    told = ", ".join(f"rank {rank} {count}" for rank, count in sorted(group.forwards.items()))
    return not_applicable(f"the ranks had different numbers of batches ({told}): see uneven-inputs")


def _later_ones(observed: Observed) -> Result | None:
    """Those after the first thousands, of which only the number and a checksum are known."""
    ends = {rank.rank: rank.last("collectives") for rank in observed}
    told = {rank: (end["count"], end["hashes"]) for rank, end in ends.items() if end}
    if len(told) < len(ends) or not told:
        return None
    for ranks in {key for _, hashes in told.values() for key in hashes}:
        members = [int(rank) for rank in ranks.split(",")]
        if len({told[rank][1].get(ranks) for rank in members if rank in told}) > 1:
            return failed(
                f"after the first thousands, the collectives of ranks {ranks} are no longer the same",
                fix=f"Run `composesim check` with --steps around that point. {_FIX}",
                ranks=tuple(members),
            )
    return None


def _name(group: Group) -> str:
    return f"group {list(group.ranks)}"


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s'[: len(ranks) > 1]} {', '.join(map(str, sorted(ranks)))}"


def _at(place: tuple[str, int] | None) -> dict[str, Any]:
    return {"file": place[0], "line": place[1]} if place else {}
