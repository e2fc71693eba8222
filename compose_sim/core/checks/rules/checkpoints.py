"""
Judge the files of a script: who writes and reads them, and when, and whether a loaded checkpoint reaches the model.

Nothing but collectives orders ranks: `HappensBefore` follows them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import TypeVar

from compose_sim.core.checks import (
    SEVERAL_RANKS,
    Case,
    Result,
    check,
    failed,
    names_text,
    not_applicable,
    passed,
    ranks_text,
    warned,
    where,
)
from compose_sim.core.checks.repeated_steps import step_place
from compose_sim.core.checks.source import empties_file
from compose_sim.core.checks.states_of_one import kept_state_of_another, optimizer_state_of_another
from compose_sim.core.checks.unexplained_ends import file_not_yet_made
from compose_sim.core.events.observations import Observed
from compose_sim.core.report.report import FaultReport, Report
from compose_sim.core.text import format_count
from compose_sim.node.records.devices_and_files import FileUse
from compose_sim.node.records.models import DdpModel, OptimizerStep
from compose_sim.node.records.precautions import LoadedElsewhere, LoadedState, SavedShards, UnfilledState
from compose_sim.node.records.process_groups import Collective, DdpForward, InitProcessGroup, UntrackedWait
from compose_sim.node.records.record import Place, Record

_WRITERS = ("write", "update")
_FIX_PARTS = "Save and load the optimizer's state of each rank: with a file or an entry for each, or with torch.distributed.checkpoint."
_FIX_WRITE = "Let one rank write (`if dist.get_rank() == 0:`), or put the rank into the file name."
_FIX_LOCAL = (
    "LOCAL_RANK is 0 once per node. If the nodes share the folder, test RANK instead: `if dist.get_rank() == 0:`."
)


@check(
    "checkpoint-race",
    "Is every shared file written by one rank, and read only when it is complete?",
    SEVERAL_RANKS,
    may_follow=("rank-confusion",),
)
def checkpoint_race(case: Case) -> Result:
    """Look at the files that more than one rank opened, at least one of them to write."""
    observed = case.observed
    files = _by_path(observed)
    written = sorted(path for path, uses in files.items() if any(use.op in _WRITERS for use in uses))
    if case.cause and (look := file_not_yet_made(case)):
        return failed(
            f"rank {case.cause.rank} reads {look.path}, which is not there, although rank {look.rank} has looked for it{where(look.at)}"
            ", as if to make it: nothing lets the others wait until it is complete",
            fix="Call `dist.barrier()` after the file is made, and before any other rank reads it.",
            at=look.at,
            ranks=(look.rank,),
        )
    if not written:
        return not_applicable("the script writes no file")
    order, renamed, awaited = HappensBefore(observed), _renamed(observed), _awaited(observed)
    twice = (_written_twice(case, order, path, files[path]) for path in written)
    early = (
        _read_early(observed, order, path, files[path])
        or (None if path in renamed else _awaited_and_read(observed, awaited, path, files[path]))
        for path in written
    )
    missed = (_missed(observed, order, path, files[path]) for path in written)
    return (
        (_shards_of_some(observed) if case.verdict == "passed" else None)
        or next(filter(None, twice), None)
        or _replaced(observed)
        or next(filter(None, early), None)
        or next(filter(None, missed), None)
        or _folder_of_another(observed, order)
        or passed(f"{format_count(len(written), 'file')} written, none by two ranks at once or read while incomplete")
    )


def _shards_of_some(observed: Observed) -> Result | None:
    """Find ranks that save their parts of a model while others, which hold the rest, save nothing."""
    saved: dict[Place | None, dict[int, SavedShards]] = {}
    for each in observed.of(SavedShards):
        saved.setdefault(each.at, {}).setdefault(each.rank, each)
    for by_rank in saved.values():
        first = by_rank[min(by_rank)]
        if len(by_rank) < first.parts:
            return failed(
                f"only {ranks_text(sorted(by_rank))} saved a shard of {format_count(first.count, 'tensor')}, such as {first.name}, "
                f"each of which is divided into {first.parts}: the rest is in no file",
                fix="Save whole tensors: `get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True))`, called on "
                "all ranks, returns them, as `value.full_tensor()` does; or let all ranks save with torch.distributed.checkpoint.",
                at=first.at,
                ranks=sorted(by_rank),
            )
    return None


def _replaced(observed: Observed) -> Result | None:
    """Find ranks that save different tensors and rename the files to one name after as many steps: the last of them remains."""
    saved: dict[tuple[int, str], int] = {}
    under: dict[tuple[str, int], dict[int, tuple[int, FileUse]]] = {}
    for each in observed.of(FileUse):
        if each.op == "written":
            saved[each.rank, each.path] = each.content
        elif each.op == "rename" and each.to and saved.get((each.rank, each.path)):
            under.setdefault((each.to, each.steps), {})[each.rank] = saved[each.rank, each.path], each
    for (path, steps), by_rank in under.items():
        contents = [content for content, _ in by_rank.values()]
        first = by_rank[min(by_rank)][1]
        nodes = {observed.ranks[rank].node for rank in by_rank}
        if len(set(contents)) > 1 and (len(nodes) == 1 or not first.to_private):
            return failed(
                f"{ranks_text(sorted(by_rank))} save different tensors as {path} after step {steps}{where(first.at)}: the last of them "
                "replaces what the others saved",
                fix="Put what tells the ranks apart into the file name, such as the rank of the tensor-parallel group, or gather the "
                "parts and let one rank save.",
                at=first.at,
                ranks=sorted(by_rank),
            )
    return None


def _by_path(observed: Observed) -> dict[str, list[FileUse]]:
    files: dict[str, list[FileUse]] = {}
    for each in observed.of(FileUse):
        files.setdefault(each.path, []).append(each)
    return files


def _renamed(observed: Observed) -> set[str | None]:
    """Return the names that files got when they were complete."""
    return {each.to for each in observed.of(FileUse) if each.op == "rename"}


def _awaited(observed: Observed) -> dict[tuple[int, int, int], set[str]]:
    """Return the files that a rank waited for, by rank, steps and synchronizations so far."""
    found: dict[tuple[int, int, int], set[str]] = {}
    for each in observed.of(FileUse):
        if each.op == "await":
            found.setdefault((each.rank, each.steps, each.sync), set()).add(each.path)
    return found


def _written_twice(case: Case, order: HappensBefore, path: str, uses: Sequence[FileUse]) -> Result | None:
    observed = case.observed
    rivals: set[int] = set()
    first: FileUse | None = None
    writes: dict[int, list[FileUse]] = {}
    for each in uses:
        if each.op in _WRITERS:
            writes.setdefault(each.rank, []).append(each)
    for rank, other_rank in combinations(sorted(writes), 2):
        for one in writes[rank]:
            for other in order.overlapping(one, writes[other_rank]):
                if all(each.at and empties_file(case.source_of(each.at[0]), each.at[1]) for each in (one, other)):
                    continue  # in any order, the file is empty afterwards
                if _is_same_file(observed, one, other) and not _is_handed_over(one, other, uses):
                    rivals |= {rank, other_rank}
                    first = first or one
    if first is None:
        return None
    by_local = rivals == {rank.rank for rank in observed if rank.local_rank == 0}
    by_local = by_local and len(observed.nodes) < observed.world_size
    why = ", those with LOCAL_RANK 0," if by_local else ""
    return failed(
        f"{ranks_text(rivals)}{why} write {path} at the same time{where(first.at)}: the last of them wins",
        fix=_FIX_LOCAL if by_local else _FIX_WRITE,
        at=first.at,
        ranks=sorted(rivals),
    )


def _awaited_and_read(
    observed: Observed, awaited: Mapping[tuple[int, int, int], set[str]], path: str, uses: Sequence[FileUse]
) -> Result | None:
    """Find a rank that waits until a file exists, and reads it while another rank is still writing under the final name."""
    for write, read in _writes_and_reads(observed, uses):
        # A second file may signal that the first is complete.
        if awaited.get((read.rank, read.steps, read.sync)) == {path}:
            return _too_early(path, write, read, "as soon as it exists, while")
    return None


def _read_early(observed: Observed, order: HappensBefore, path: str, uses: Sequence[FileUse]) -> Result | None:
    for write, read in _writes_and_reads(observed, uses):
        if order.may_overlap(write, read) and not _is_handed_over(write, read, uses):
            return _too_early(path, write, read, "without a barrier in between, while")
    return None


def _missed(observed: Observed, order: HappensBefore, path: str, uses: Sequence[FileUse]) -> Result | None:
    """Find ranks that asked whether a file exists while another rank may have been writing it, and go on without it for good."""
    readers = {each.rank for each in uses if each.op == "read"}
    for miss in uses:
        if miss.op != "miss" or miss.polls or miss.rank in readers or not readers:
            continue
        for write in uses:
            is_other = write.op in _WRITERS and write.rank != miss.rank and _is_same_file(observed, write, miss)
            if is_other and order.may_overlap(write, miss):
                return warned(
                    f"rank {miss.rank} asks whether {path} exists{where(miss.at)}, and goes on without it, while rank {write.rank} may "
                    f"be writing it{where(write.at)}; {ranks_text(readers)} read it",
                    fix="Call `dist.barrier()` after writing and before any rank asks, or let one rank ask and broadcast the answer.",
                    at=miss.at,
                    ranks=sorted({miss.rank, write.rank}),
                )
    return None


def _folder_of_another(observed: Observed, order: HappensBefore) -> Result | None:
    """Find a rank that writes into a folder that another makes, and neither waits for that nor looks whether it is there."""
    for make, use in _makes_and_writes(observed):
        if make.rank != use.rank and _is_same_file(observed, make, use) and order.may_overlap(make, use):
            return warned(
                f"rank {make.rank} makes the folder {make.path}{where(make.at)}, and rank {use.rank} writes into it{where(use.at)} "
                "without a barrier in between",
                fix="Call `dist.barrier()` after making it, or let every rank call `os.makedirs(folder, exist_ok=True)`.",
                at=make.at,
                ranks=sorted({make.rank, use.rank}),
            )
    return None


def _makes_and_writes(observed: Observed) -> Iterator[tuple[FileUse, FileUse]]:
    """Yield each use that makes a folder with each that writes into it, unless that rank has made it too or asked for it."""
    made: dict[str, list[FileUse]] = {}
    for each in observed.of(FileUse):
        if each.op == "mkdir":
            made.setdefault(each.path, []).append(each)
    joined = {rank.rank: init.index for rank in observed if (init := rank.last(InitProcessGroup))}
    for rank in observed if made else ():
        known: set[str] = set()
        for use in rank.of(FileUse):
            folder = use.path.rpartition("/")[0]
            if use.op in ("mkdir", "isdir"):
                known.add(use.path)
            elif use.op in (*_WRITERS, "append", "create") and folder not in known:
                for make in made.get(folder, ()):
                    # Most backends let no rank go on before all have joined.
                    if make.index >= joined.get(make.rank, 0) or use.index <= joined.get(use.rank, use.index):
                        yield make, use


def _too_early(path: str, write: FileUse, read: FileUse, when: str) -> Result:
    return failed(
        f"rank {read.rank} reads {path}{where(read.at)} {when} rank {write.rank} may still be writing it{where(write.at)}",
        fix="Call `dist.barrier()` between writing and reading, or write to another name and `os.replace` the complete file.",
        at=read.at,
        ranks=(write.rank, read.rank),
    )


def _writes_and_reads(observed: Observed, uses: Sequence[FileUse]) -> Iterator[tuple[FileUse, FileUse]]:
    """Yield each use of a file that writes with each one of another rank that reads the same file after as many steps."""
    reads: dict[int, list[FileUse]] = {}
    for each in uses:
        if each.op == "read":
            reads.setdefault(each.steps, []).append(each)
    for write in uses:
        if write.op in _WRITERS:
            for read in reads.get(write.steps, ()):
                if read.rank != write.rank and _is_same_file(observed, write, read):
                    yield write, read


def _is_same_file(observed: Observed, one: FileUse, other: FileUse) -> bool:
    """Return whether two ranks mean the same file by the same path: not if each node has its own and they are on two nodes."""
    return not (one.private or other.private) or observed.ranks[one.rank].node == observed.ranks[other.rank].node


def _is_handed_over(write: FileUse, use: FileUse, uses: Sequence[FileUse]) -> bool:
    """Return whether the script waits for files to appear, and this one was complete by then."""
    ends = [each.t for each in uses if each.op == "written" and each.rank == write.rank and each.t >= write.t]
    return use.polls and use.t >= min(ends, default=write.t)


A = TypeVar("A", bound=Record)
Key = tuple[tuple[int, ...], str]


class HappensBefore:
    """
    What each rank knew about the progress of the others through collectives: a vector clock.

    After a collective, each participating rank is later than everything that any of them did before. Beyond the point at which
    the ranks' collectives no longer match, nothing is known.
    """

    def __init__(self, observed: Observed) -> None:
        """Follow the collectives of all ranks, in an order in which they can have happened."""
        collectives = {
            rank.rank: [each for each in rank.of(Collective, DdpForward, DdpModel) if _synchronizes(each)]
            for rank in observed
        }
        self._indices = {rank: [each.index for each in issued] for rank, issued in collectives.items()}
        self._untracked = {rank.rank: {self._interval(each) for each in rank.of(UntrackedWait)} for rank in observed}
        self._clocks: dict[int, list[dict[int, int]]] = {rank: [{}] for rank in collectives}
        self._follow({rank: list(map(_key, issued)) for rank, issued in collectives.items()})

    def _interval(self, record: Record) -> int:
        """Return how many collectives the rank had issued."""
        return bisect_left(self._indices[record.rank], record.index)

    def _follow(self, ahead: dict[int, list[Key]]) -> None:
        waiting: dict[Key, list[int]] = {}
        ready = list(ahead)
        while ready:
            rank = ready.pop()
            done = len(self._clocks[rank]) - 1
            if done >= len(ahead[rank]):
                continue
            key = ahead[rank][done]
            there = waiting.setdefault(key, [])
            there.append(rank)
            members = [member for member in key[0] if member in ahead]
            if len(there) == len(members):
                self._meet(waiting.pop(key))
                ready += members

    def _meet(self, members: list[int]) -> None:
        known: dict[int, int] = {}
        for member in members:
            clock = {**self._clocks[member][-1], member: len(self._clocks[member])}
            for rank, count in clock.items():
                known[rank] = max(known.get(rank, 0), count)
        for member in members:
            self._clocks[member].append(known)

    def may_overlap(self, one: Record, other: Record) -> bool:
        """Return whether either may have happened first, as far as can be seen: nothing between them orders them."""
        first, second = self._interval(one), self._interval(other)
        clocks = self._clocks
        if first >= len(clocks[one.rank]) or second >= len(clocks[other.rank]):
            return False
        if first in self._untracked[one.rank] or second in self._untracked[other.rank]:
            return False  # a message, a store, a lock
        one_first = clocks[other.rank][second].get(one.rank, 0) > first
        other_first = clocks[one.rank][first].get(other.rank, 0) > second
        return not one_first and not other_first

    def overlapping(self, one: Record, others: Sequence[A]) -> Iterator[A]:
        """Yield those of `others`, which are records of one rank in order, that `may_overlap` with `one`."""
        first, clocks = self._interval(one), self._clocks
        if not others or first >= len(clocks[one.rank]):
            return
        rank = others[0].rank
        # All before these have happened before, and once one has happened after, all that follow have.
        start = bisect_left(others, clocks[one.rank][first].get(rank, 0), key=self._interval)
        for place in range(start, len(others)):
            other = others[place]
            second = self._interval(other)
            if second >= len(clocks[rank]) or clocks[rank][second].get(one.rank, 0) > first:
                return
            if self.may_overlap(one, other):
                yield other


def _synchronizes(each: Record) -> bool:
    return not isinstance(each, DdpModel) or each.init_sync  # it compares the shapes of parameters over its ranks


def _key(each: Collective | DdpForward | DdpModel) -> Key:
    group = each.ranks if isinstance(each, DdpModel) else each.group
    return group or (each.rank,), each.name if isinstance(each, Collective) else ""


@check("checkpoint-load", "Does a loaded checkpoint reach the model, on the GPU of its rank?")
def checkpoint_load(case: Case) -> Result:
    """Look for state dicts without any name that matches, and for tensors loaded onto the GPU of another rank."""
    for each in case.observed.of(LoadedState):
        if (each.prefix or not each.strict) and (found := _unmatched(case, each)):
            return found
    if found := _state_of_another(case) or _kept_by_another(case) or _unfilled(case):
        return found
    elsewhere = list(case.observed.of(LoadedElsewhere))
    if elsewhere:
        first = elsewhere[0]
        return warned(
            f"{ranks_text({each.rank for each in elsewhere})} loaded a checkpoint without map_location: its tensors went to the GPU "
            f"that saved them ({', '.join(f'cuda:{each}' for each in first.devices)}), not to cuda:{first.current}",
            fix='Load with `torch.load(path, map_location="cpu")`, or with `map_location=f"cuda:{local_rank}"`.',
            at=first.at,
            ranks=sorted({each.rank for each in elsewhere}),
        )
    if any(each.op == "read" for each in case.observed.of(FileUse)):
        return passed("the names in every loaded state dict match those of the model")
    return not_applicable("no checkpoint was seen to be loaded")


def _unfilled(case: Case) -> Result | None:
    first = case.observed.first(UnfilledState) if case.observed.first(OptimizerStep) else None
    if first is None:
        return None
    return failed(
        f"the checkpoint has {first.saved} entries of optimizer state for '{first.name}', and the state dict that it is loaded into "
        "has none: only what is there is filled, so the optimizer starts from scratch",
        fix="Use `get_state_dict(model, optimizer)` of torch.distributed.checkpoint.state_dict, which prepares the state, and then "
        "`set_state_dict`.",
        at=first.at,
    )


def _state_of_another(case: Case) -> Result | None:
    """Find ranks that each hold a part of a parameter with an optimizer state of its own, until all are given that of one."""
    found = optimizer_state_of_another(case.observed)
    if found is None:
        return None
    done, name, is_certain = found
    given = "they were given that of one rank" if is_certain else "as if they were given that of one rank"
    return (failed if is_certain else warned)(
        f"before step {done + 1} all ranks have the same optimizer state ({name}), although each keeps that of another part of the "
        f"parameter, and had a state of its own before: {given}",
        fix=_FIX_PARTS,
        at=step_place(case),
    )


def _kept_by_another(case: Case) -> Result | None:
    """Find the same for a hand-written optimizer."""
    found = kept_state_of_another(case.observed)
    if found is None:
        return None
    return warned(
        f"after step {found.steps} all ranks loaded the same {names_text(found.names)} into {found.type}{where(found.at)}, "
        "although each had tensors of its own before: as if they were given those of one rank",
        fix=_FIX_PARTS,
        at=found.at,
    )


def _unmatched(case: Case, each: LoadedState) -> Result | None:
    """Judge a state dict without a name that the module has; `strict` loading raises, and the script may go on from there."""
    if each.strict and case.verdict == "passed":
        return None
    names = names_text(each.unexpected)
    if not each.prefix:
        return warned(
            f"none of the {each.names} names of the model is in the state dict ({names}), and strict=False ignores that",
            fix="Load the state dict of this model, and look at the names that `load_state_dict` returns.",
            at=each.at,
        )
    outcome = "load_state_dict raised" if each.strict else "strict=False ignores that, so nothing was loaded"
    return failed(
        f"none of the {each.names} names of the model is in the state dict ({names}); they differ by the prefix '{each.prefix}' of a "
        f"wrapper, and {outcome}",
        fix="Save the weights of the model inside the wrapper, `model.module.state_dict()`, and load them before wrapping.",
        at=each.at,
    )


def with_checkpoints(report: Report, observed_in: Callable[[int], Observed]) -> Report:
    """
    Add to each preemption of a report the last file that was complete after SIGTERM, on any rank of that round.

    Ranks often agree on a preemption, and then rank 0 writes, wherever it runs. A file is complete when torch.save returns, or
    when it is renamed; what another library writes without a rename is not seen. `observed_in` returns the observations of a
    generation.
    """
    started = report.timings.started_at
    if started is None:
        return report
    return replace(
        report,
        faults=tuple(
            _with_checkpoint(fault, started + (fault.begun_s or 0.0), observed_in(_generation_at(report, fault)))
            if fault.kind == "preempt"
            else fault
            for fault in report.faults
        ),
    )


def _with_checkpoint(fault: FaultReport, begun_at: float, observed: Observed) -> FaultReport:
    complete = [each for each in observed.of(FileUse) if each.op in ("written", "rename") and each.t >= begun_at]
    last = max(complete, key=lambda each: each.t, default=None)
    if last is None:
        return fault
    return replace(fault, checkpoint=last.to or last.path, checkpoint_s=round(last.t - begun_at, 3))


def _generation_at(report: Report, fault: FaultReport) -> int:
    """Return the generation of the round that was under way when a fault began."""
    began = fault.begun_s or 0.0
    return max((each.generation for each in report.rounds if (each.began_s or 0.0) <= began), default=0)
