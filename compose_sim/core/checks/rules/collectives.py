"""Judge whether all ranks of a group issue the same collectives in the same order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from compose_sim.core.checks import (
    SEVERAL_RANKS,
    Case,
    Result,
    check,
    failed,
    not_applicable,
    passed,
    ranks_text,
    warned,
    where,
)
from compose_sim.core.checks.rules.progress import FIX_DEPARTURE, departure, ended_by_others, uneven_inputs
from compose_sim.core.checks.source import early_reads
from compose_sim.core.checks.tolerances import MIN_STEPS
from compose_sim.core.events.observations import Observed, RankObserved
from compose_sim.core.report.report import Cause
from compose_sim.core.text import format_count
from compose_sim.node.records.data import Batch, EpochProgress
from compose_sim.node.records.devices_and_files import FileUse
from compose_sim.node.records.models import OptimizerStep
from compose_sim.node.records.process_groups import (
    Collective,
    CollectiveFailed,
    DdpForward,
    LaterCollectives,
    LaterInGroup,
    LostResult,
    ReducedAgain,
    SharedBuffer,
    TakenFromAny,
)
from compose_sim.node.records.record import Place, Shape
from compose_sim.node.records.script import ScriptEnd

_FIX = (
    "Let every rank of the group call the same collectives in the same order: move the call out of a branch that only some ranks take "
    "(`if rank == 0:` around it, an early `continue`, `break` or `return`), and keep only the use of its result inside."
)
_FIX_VALUE = (
    "Pass the same {what} on every rank: a collective matches what the ranks pass by order alone, and checks nothing."
)
_FIX_ROOT = (
    "Pass the same `src` or `dst` on every rank, such as 0: a rank of the world, whatever RANK and LOCAL_RANK are."
)
_EQUAL_SHAPES = (
    *("broadcast", "all_reduce", "reduce", "all_gather_into_tensor", "reduce_scatter_tensor"),
    *("all_reduce_coalesced", "reduce_scatter"),
)
_AGREED = {"op": "collective", "root": "root rank", "reduce": "reduction", "dtype": "dtype", "ranks": "ranks"}
_POSITION = "position in the training loop"


@check("collective-mismatch", "Do all ranks of a group issue the same collectives in the same order?", SEVERAL_RANKS)
def collective_mismatch(case: Case) -> Result:
    """Compare, for each group, what its members issued, position by position."""
    groups = issuing_groups(case.observed)
    count = sum(count for group in groups for count in group.counts.values())
    misplaced = _overwritten(case.observed) or _mixed_up(case.observed)
    if not count:
        return _used_early(case) or misplaced or not_applicable("the script issued no collective of its own")
    for group in groups:
        result = _differ(case, group) or _missing(case, group)
        if result:
            return result
    for group in groups:
        if len(set(group.counts.values())) > 1:
            return not_applicable(f"the run ended ({case.verdict}) while {group.counted}")
    alike = passed(f"{count} collectives, the same in the same order on all ranks of a group")
    lost = _lost_result(case.observed) or _reduced_again(case.observed)
    return _later_ones(groups) or lost or _used_early(case) or misplaced or alike


def _used_early(case: Case) -> Result | None:
    """Find a tensor that the text of the script uses while it may still be received or reduced."""
    for each in early_reads(case.sources):
        return warned(
            f"{each.call} returns at once, and `{each.tensor}` is used in line {each.used_in}, before the script waits for it: it "
            "may still hold old numbers, or a mix of old and new ones",
            fix="Call `wait()` on what it returns before the tensor is used, or leave out `async_op=True`.",
            at=(each.file, each.line),
        )
    return None


def _lost_result(observed: Observed) -> Result | None:
    """Find an all_reduce during the training whose result nothing can use. Equal numbers on all ranks only let them wait."""
    lost: dict[Place, Counter[int]] = {}  # times by rank
    for rank in observed:
        begun = rank.first(OptimizerStep)
        for each in rank.of(LostResult):
            if each.at and begun and each.index > begun.index:
                lost.setdefault(each.at, Counter())[rank.rank] += 1
    for at, times in lost.items():
        given = [
            [each.values for each in rank.of(Collective) if each.at == at] for rank in observed if rank.rank in times
        ]
        # Few numbers each time, and the same ones on all ranks.
        is_barrier = all(map(all, given)) and all(each == given[0] for each in given)
        if len(times) < 2 or is_barrier:
            continue
        return warned(
            f"the result of all_reduce{where(at)} is lost: it was given a temporary tensor, which was freed as the call returned "
            f"({format_count(max(times.values()), 'time')} on a rank)",
            fix="all_reduce changes the tensor that it is given, and returns nothing. Give it a name, and use it afterwards: "
            "`mean = gradient / world_size; dist.all_reduce(mean)`.",
            at=at,
            ranks=sorted(times),
        )
    return None


def _reduced_again(observed: Observed) -> Result | None:
    """Find accumulated counts that are reduced in place again and again."""
    times: dict[Place, Counter[int]] = {}  # by rank
    whole: set[Place] = set()
    for each in observed.of(ReducedAgain):
        if each.at:
            whole |= {each.at} if each.is_whole else set()
            times.setdefault(each.at, Counter())[each.rank] += 1
    groups: dict[Place | None, set[tuple[int, ...]]] = {}
    for issued in observed.of(Collective):
        groups.setdefault(issued.at, set()).add(issued.group)
    for at, by_rank in times.items():
        # One rank may keep the total while the others begin from zero again.
        if any(all(by_rank[rank] >= MIN_STEPS for rank in group) for group in groups.get(at, {tuple(observed.ranks)})):
            return (failed if at in whole else warned)(  # totals of something else may have been copied there
                f"all_reduce{where(at)} is given counts that hold its last result, {max(by_rank.values())} times on a rank: what was "
                "added up over the ranks before is added again for each rank",
                fix="Reduce a copy, and go on counting in the tensor of this rank: `total = counts.clone(); dist.all_reduce(total)`. "
                "Or set the counts to zero after each reduction.",
                at=at,
            )
    return None


def _overwritten(observed: Observed) -> Result | None:
    """Find a list for the parts of several ranks that holds one tensor several times, during the training."""
    for rank in observed:
        begun = rank.first(OptimizerStep)
        found = [each for each in rank.of(SharedBuffer) if begun and each.index > begun.index]
        if len(found) >= MIN_STEPS:
            return failed(
                f"the list for what {found[0].op}{where(found[0].at)} gets of several ranks holds one tensor several times, "
                f"{len(found)} times in the training: each part replaces the one before, and only the last is left",
                fix="Receive each part into a tensor of its own: `[torch.empty_like(own) for _ in range(world_size)]`, or append a "
                "`buffer.clone()`.",
                at=found[0].at,
                ranks=(rank.rank,),
            )
    return None


def _mixed_up(observed: Observed) -> Result | None:
    """Find messages in two parts, such as indices and values, whose parts a rank takes from two senders."""
    for rank in observed:
        taken = list(rank.of(TakenFromAny))
        pairs = list(zip(taken[::2], taken[1::2], strict=False))
        kinds = {(one.at, one.shape, two.at, two.shape) for one, two in pairs}
        mixed = [(one, two) for one, two in pairs if one.source != two.source]
        senders = [{each.source for each in part} for part in zip(*pairs, strict=True)]
        # Parts of the same shape, such as two sums, may be added up in any order.
        if len(kinds) != 1 or not mixed or mixed[0][0].shape == mixed[0][1].shape or senders[0] != senders[1]:
            continue
        one, two = mixed[0]
        return warned(
            f"rank {rank.rank} takes a message from rank {one.source}{where(one.at)}, and the next one{where(two.at)} from rank "
            f"{two.source}; {len(mixed)} of {len(pairs)} pairs come from two ranks: recv without a source takes what comes first, even "
            "if it belongs to another message",
            fix="Take the later parts from the sender of the first one: `sender = dist.recv(first)`, then "
            "`dist.recv(second, src=sender)`. If the parts are independent of each other, nothing is wrong.",
            at=two.at,
            ranks=(rank.rank, one.source, two.source),
        )
    return None


def _differ(case: Case, group: IssuingGroup) -> Result | None:
    """Find the first position at which members issued different collectives, or the same ones between different calls of DDP."""
    finished = case.verdict == "passed" and len(set(group.forwards.values())) == 1
    for index, together in enumerate(zip(*group.issued.values(), strict=False)):
        first = together[0]
        for other in together[1:]:
            what = _difference(first.seen, other.seen)
            if what and _is_uneven(case, group, first, other):
                return _left_to_uneven_inputs(group)
            if what or (finished and first.forwards != other.forwards):
                found = _say_difference(group, index, together, what or _POSITION)
                gone = departure(case) if what == "collective" and case.verdict == "hung" else None
                if gone:
                    return failed(f"{gone.text}; {found.detail}", fix=FIX_DEPARTURE, at=gone.at, ranks=gone.left)
                return found
        if _shapes_differ([each.seen for each in together]):
            return _say_difference(group, index, together, "shape")
    return None


def _difference(one: Collective, other: Collective) -> str:
    """Return the first property on which two ranks disagree, shapes aside if ranks may agree on different ones; "" if none."""
    for field, name in _AGREED.items():
        if getattr(one, field) != getattr(other, field):
            return name
    if one.op in _EQUAL_SHAPES and list(map(_flat, one.shapes)) != list(map(_flat, other.shapes)):
        return "shape"
    return ""


def _shapes_differ(together: Sequence[Collective]) -> bool:
    """Return whether shapes differ from those that another rank expects, in collectives in which ranks may agree on shapes."""
    first = together[0]
    if first.op.startswith("all_to_all"):
        return _parts_differ(together)
    if first.op not in ("all_gather", "gather", "scatter"):
        return False
    by_rank = {each.rank: each for each in together}
    for each in together:
        if first.op != "all_gather" and each.rank != first.root:
            continue  # only the root has a list
        expected = each.peers or each.shapes * len(first.group)
        for member, shape in zip(sorted(first.group), expected, strict=False):
            if member in by_rank and list(map(_flat, by_rank[member].shapes)) != [_flat(shape)]:
                return True
    return False


def _parts_differ(together: Sequence[Collective]) -> bool:
    """Return whether a rank sends another more or less than that expects."""
    members = sorted(together[0].group)
    place = {rank: index for index, rank in enumerate(members)}
    known = [each for each in together if len(each.sends) == len(each.receives) == len(members)]
    return any(one.sends[place[other.rank]] != other.receives[place[one.rank]] for one in known for other in known)


def _flat(shape: Shape) -> list[int]:
    """Return a shape without its ones, which make no difference to what is sent."""
    return [size for size in shape if size != 1]


def _say_difference(group: IssuingGroup, index: int, together: Sequence[IssuedCollective], what: str) -> Result:
    sides: dict[str, list[IssuedCollective]] = {}
    for each in together:
        text = (
            f"{each} after {each.forwards} forward passes" if what == _POSITION else f"{each}{_value(each.seen, what)}"
        )
        sides.setdefault(text, []).append(each)
    odd = min(sides.values(), key=lambda side: (len(side), -side[0].rank))
    listed = sorted(sides.items(), key=lambda side: [each.rank for each in side[1]])
    return failed(
        f"collective {index + 1} of {group} differs in its {what}: "
        + "; ".join(f"{ranks_text(each.rank for each in side)} {text}" for text, side in listed),
        fix=_FIX
        if what in ("collective", _POSITION)
        else _FIX_ROOT
        if what == "root rank"
        else _FIX_VALUE.format(what=what),
        at=odd[0].seen.at,
        ranks=[each.rank for each in odd],
    )


def _value(seen: Collective, what: str) -> str:
    shapes = [list(shape) for shape in seen.shapes]
    values: dict[str, Any] = {
        "root rank": seen.root,
        "reduction": seen.reduce or "SUM",
        "dtype": seen.dtype,
        "ranks": seen.ranks,
        "shape": shapes[0] if len(shapes) == 1 else shapes,
    }
    return f" with {what} {values[what]}" if what in values else ""


def _missing(case: Case, group: IssuingGroup) -> Result | None:
    """Find a rank that stopped issuing collectives before the others: it has ended, or waits in something else."""
    counts = group.counts
    shortest = min(counts.values())
    if shortest == max(counts.values()) or (group.later and not all(_ends(case, group))):
        return None  # the later ones of a rank that did not reach its end are not known
    behind = [rank for rank, count in counts.items() if count == shortest]
    ahead = [rank for rank, count in counts.items() if count > shortest]
    extra = next(iter(group.issued[ahead[0]][shortest:]), None)
    if not _is_missed(case, group, behind, ahead):
        return None
    if extra and _is_uneven(case, group, extra, None):
        return _left_to_uneven_inputs(group)
    gone = departure(case)
    if gone and not set(gone.left) <= set(ahead):  # else they left the loop to call what the others never call
        return failed(gone.text, fix=FIX_DEPARTURE, at=gone.at, ranks=gone.left)
    luck = ", and the run passed by luck" if case.verdict == "passed" else ""
    extra = group.surplus(ahead[0], behind[0]) or extra
    what = str(extra) if extra else f"collective {shortest + 1}"
    return failed(
        f"{ranks_text(behind)} never called {what}{luck}: {group.counted}",
        fix=_FIX,
        at=extra.seen.at if extra else None,
        ranks=behind,
    )


def _ends(case: Case, group: IssuingGroup) -> list[ScriptEnd | None]:
    return [case.observed.ranks[rank].last(ScriptEnd) for rank in group.issued]


def _is_missed(case: Case, group: IssuingGroup, behind: Sequence[int], ahead: Sequence[int]) -> bool:
    """Return whether the ranks behind would never have reached the collective, had the run continued."""
    if case.verdict == "passed" or any(each.rank in behind and each.is_done for each in case.stalls):
        return True
    if case.verdict in ("failed", "hung") and all(end and not end.raised for end in _ends(case, group)):
        return True  # what followed their scripts failed or hung
    if case.verdict == "interrupted":
        return False
    elsewhere = {each.rank for each in case.stalls if not (each.waits_in or each.is_done)}
    if case.verdict == "hung" and elsewhere.issuperset(behind):
        return False  # they are in code of their own, which the hang names, and may come after it
    cause = case.cause
    if cause and cause.kind == "exit" and cause.rank in behind:
        return True  # the rank exited early, without an error
    ranks = case.observed.ranks
    if case.verdict == "failed" and not any(_died_in(ranks[rank], cause) for rank in ahead):
        return False  # something else ended the run before the ranks behind could come
    return any(_waits_elsewhere(ranks[rank], group) for rank in behind)


def _died_in(rank: RankObserved, cause: Cause | None) -> bool:
    """Return whether a rank ended in a collective: it raised there, or the process was killed there."""
    last = rank.last(Collective, DdpForward, CollectiveFailed, Batch, FileUse)
    killed = cause is not None and (cause.rank, cause.kind) == (rank.rank, "signal")
    return isinstance(last, CollectiveFailed) or (killed and isinstance(last, (Collective, DdpForward)))


def _waits_elsewhere(rank: RankObserved, group: IssuingGroup) -> bool:
    """Return whether a rank has ended without an error of its own, or the last thing it did was another collective."""
    if rank.last(ScriptEnd):
        return ended_by_others(rank)
    last = rank.last(Collective, DdpForward, Batch)
    issued = group.issued[rank.rank]
    return last is not None and not isinstance(last, Batch) and not (issued and last is issued[-1].seen)


def _is_uneven(case: Case, group: IssuingGroup, one: IssuedCollective, other: IssuedCollective | None) -> bool:
    """Return whether uneven-inputs finds that some ranks had fewer batches, and these have left the loop for what comes after it."""
    if not uneven_inputs.judge(case).is_problem:
        return False
    least = min(group.forwards.values())
    if least == max(group.forwards.values()):
        return False
    early = [each for each in (one, other) if each is not None and group.forwards[each.rank] == least]
    if not early:
        return False
    rank = case.observed.ranks[early[0].rank]
    loop = [each for each in rank.of(EpochProgress, Batch) if each.index < early[0].seen.index]
    if not loop:
        return True
    last = loop[-1]
    if not isinstance(last, EpochProgress) or last.phase not in ("exhausted", "closed"):
        return False
    later = [case.observed.ranks[rank] for rank, count in group.forwards.items() if count > least]
    return not all(_has_had_as_many(rank, last) for rank in later)


def _has_had_as_many(rank: RankObserved, ended: EpochProgress) -> bool:
    """Return whether this rank has also ended the same epoch, after as many batches."""
    ends = [each for each in rank.of(EpochProgress) if each.phase in ("exhausted", "closed")]
    same = (ended.loader, ended.epoch, ended.batches)
    return any((each.loader, each.epoch, each.batches) == same for each in ends)


def _left_to_uneven_inputs(group: IssuingGroup) -> Result:
    counts = ", ".join(f"rank {rank}: {count}" for rank, count in sorted(group.forwards.items()))
    return not_applicable(f"the ranks had different numbers of batches ({counts}): see uneven-inputs")


def _later_ones(groups: Sequence[IssuingGroup]) -> Result | None:
    """Compare the hashes of the collectives that were too many to be recorded one by one."""
    for group in groups:
        if len({each.digest for each in group.later.values()}) > 1:
            first = len(next(iter(group.issued.values())))
            return failed(
                f"after the first {first:,}, the collectives of {ranks_text(group.ranks)} are no longer the same",
                fix=f"Run `composesim check` with --steps around that point. {_FIX}",
                ranks=group.ranks,
            )
    return None


@dataclass(frozen=True, slots=True)
class IssuedCollective:
    """A collective as one rank issued it, and how many forward passes of DDP models came before it."""

    seen: Collective
    forwards: int

    @property
    def rank(self) -> int:
        return self.seen.rank

    def __str__(self) -> str:
        return f"{self.seen.op}{where(self.seen.at)}"


@dataclass(frozen=True, slots=True)
class IssuingGroup:
    """The collectives that each member of a process group issued, in order."""

    ranks: tuple[int, ...]
    issued: Mapping[int, Sequence[IssuedCollective]]
    forwards: Mapping[int, int]  # rank -> number of forward passes of DDP models
    later: Mapping[int, LaterInGroup]  # rank -> collectives that were too many to be recorded one by one

    @property
    def counts(self) -> dict[int, int]:
        """How many collectives each member issued in all."""
        return {
            rank: len(issued) + (self.later[rank].number if rank in self.later else 0)
            for rank, issued in self.issued.items()
        }

    @property
    def counted(self) -> str:
        """`rank 0 issued 55 collectives in group [0, 1], rank 1 only 50`."""
        members: dict[int, list[int]] = {}
        for rank, count in self.counts.items():
            members.setdefault(count, []).append(rank)
        (most, ahead), *fewer = sorted(members.items(), reverse=True)
        rest = ", ".join(f"{ranks_text(ranks)} only {count}" for count, ranks in fewer)
        return f"{ranks_text(ahead)} issued {format_count(most, 'collective')} in {self}, {rest}"

    def surplus(self, one: int, other: int) -> IssuedCollective | None:
        """Return the first collective of a rank that its line issued more often than on the other rank."""
        left = Counter(str(each) for each in self.issued[other])
        for each in self.issued[one]:
            left[str(each)] -= 1
            if left[str(each)] < 0:
                return each
        return None

    def __str__(self) -> str:
        return f"group {list(self.ranks)}"


def issuing_groups(observed: Observed) -> list[IssuingGroup]:
    """Return the groups of at least two ranks; groups of the same ranks are distinguished by name."""
    found: dict[tuple[tuple[int, ...], str], dict[int, list[IssuedCollective]]] = {}
    forwards = dict.fromkeys(observed.ranks, 0)
    for rank in observed:
        for each in rank.of(Collective, DdpForward):
            if isinstance(each, DdpForward):
                forwards[rank.rank] += 1
            elif len(each.group) > 1:
                members = (member for member in each.group if member in observed.ranks)
                issued = found.setdefault((each.group, each.name), {member: [] for member in members})
                issued.setdefault(rank.rank, []).append(IssuedCollective(each, forwards[rank.rank]))
    later: dict[tuple[tuple[int, ...], str], dict[int, LaterInGroup]] = {}
    for rank in observed:
        for group in (group for end in rank.of(LaterCollectives) for group in end.groups):
            later.setdefault((group.ranks, group.name), {})[rank.rank] = group
    return [IssuingGroup(key[0], issued, forwards, later.get(key, {})) for key, issued in found.items()]
