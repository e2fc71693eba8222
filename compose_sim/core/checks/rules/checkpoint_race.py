"""Judge whether every shared file is written by one rank, and read only when it is complete."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from compose_sim.core.checks import Case, Result, failed, not_applicable, passed
from compose_sim.core.checks.evidence.happens_before import HappensBefore
from compose_sim.core.checks.wording import ranks_text, where
from compose_sim.core.events.observations import Observed
from compose_sim.core.units import format_count
from compose_sim.node.records.devices_and_files import FileUse

QUESTION = "Is every shared file written by one rank, and read only when it is complete?"

_WRITERS = ("write", "update")
_FIX_WRITE = "Let one rank write (`if dist.get_rank() == 0:`), or put the rank into the file name."
_FIX_LOCAL = (
    "LOCAL_RANK is 0 once per node. If the nodes share the folder, test RANK instead: `if dist.get_rank() == 0:`."
)
_FIX_READ = (
    "Call `dist.barrier()` between writing and reading, or write to another name and `os.replace` the complete file."
)


def judge(case: Case) -> Result:
    """Look at the files that more than one rank opened, at least one of them to write."""
    observed = case.observed
    if observed.world_size < 2:
        return not_applicable("there is only one rank")
    files = _by_path(observed)
    written = sorted(path for path, uses in files.items() if any(use.op in _WRITERS for use in uses))
    if not written:
        return not_applicable("the script writes no file")
    order, renamed, awaited = HappensBefore(observed), _renamed(observed), _awaited(observed)
    twice = (_written_twice(observed, order, path, files[path]) for path in written)
    early = (
        _read_early(observed, order, path, files[path])
        or (None if path in renamed else _awaited_and_read(observed, awaited, path, files[path]))
        for path in written
    )
    return (
        next(filter(None, twice), None)
        or next(filter(None, early), None)
        or passed(f"{format_count(len(written), 'file')} written, none by two ranks at once or read while incomplete")
    )


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


def _written_twice(observed: Observed, order: HappensBefore, path: str, uses: Sequence[FileUse]) -> Result | None:
    rivals: set[int] = set()
    first: FileUse | None = None
    writes: dict[int, list[FileUse]] = {}
    for each in uses:
        if each.op in _WRITERS:
            writes.setdefault(each.rank, []).append(each)
    for rank, other_rank in combinations(sorted(writes), 2):
        for one in writes[rank]:
            for other in order.overlapping(one, writes[other_rank]):
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


def _too_early(path: str, write: FileUse, read: FileUse, when: str) -> Result:
    return failed(
        f"rank {read.rank} reads {path}{where(read.at)} {when} rank {write.rank} may still be writing it{where(write.at)}",
        fix=_FIX_READ,
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
