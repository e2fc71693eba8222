"""Judge whether every shared file is written by one rank, and read only when it is complete."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
    order = HappensBefore(observed)
    twice = (_written_twice(observed, order, path, files[path]) for path in written)
    early = (
        _read_early(observed, order, path, files[path]) or _awaited_and_read(observed, path, files[path])
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


def _written_twice(observed: Observed, order: HappensBefore, path: str, uses: Sequence[FileUse]) -> Result | None:
    rivals: set[int] = set()
    first: FileUse | None = None
    for one, other in _pairs(observed, uses, _WRITERS, _WRITERS):
        if one.rank < other.rank and order.may_overlap(one, other) and not _is_handed_over(one, other, uses):
            rivals |= {one.rank, other.rank}
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


def _awaited_and_read(observed: Observed, path: str, uses: Sequence[FileUse]) -> Result | None:
    """Find a rank that waits until a file exists, and reads it while another rank is still writing under the final name."""
    if any(each.to == path for each in observed.of(FileUse) if each.op == "rename"):
        return None
    for write, read in _pairs(observed, uses, _WRITERS, ("read",)):
        waits = [each for each in observed.ranks[read.rank].of(FileUse) if each.op == "await"]
        here = [each for each in waits if each.steps == read.steps and each.sync == read.sync]
        others = any(each.path != path for each in here)  # a second file may signal that the first is complete
        if here and not others and write.steps == read.steps:
            return _too_early(path, write, read, "as soon as it exists, while")
    return None


def _read_early(observed: Observed, order: HappensBefore, path: str, uses: Sequence[FileUse]) -> Result | None:
    for write, read in _pairs(observed, uses, _WRITERS, ("read",)):
        if write.steps == read.steps and order.may_overlap(write, read) and not _is_handed_over(write, read, uses):
            return _too_early(path, write, read, "without a barrier in between, while")
    return None


def _too_early(path: str, write: FileUse, read: FileUse, when: str) -> Result:
    return failed(
        f"rank {read.rank} reads {path}{where(read.at)} {when} rank {write.rank} may still be writing it{where(write.at)}",
        fix=_FIX_READ,
        at=read.at,
        ranks=(write.rank, read.rank),
    )


def _pairs(
    observed: Observed, uses: Sequence[FileUse], ops: Sequence[str], others: Sequence[str]
) -> Iterator[tuple[FileUse, FileUse]]:
    """Yield two uses of the same file by two ranks, which are on one node if each node has its own file."""
    for one in uses:
        for other in uses:
            if one.op in ops and other.op in others and one.rank != other.rank:
                together = observed.ranks[one.rank].node == observed.ranks[other.rank].node
                if together or not (one.private or other.private):
                    yield one, other


def _is_handed_over(write: FileUse, use: FileUse, uses: Sequence[FileUse]) -> bool:
    """Return whether the script waits for files to appear, and this one was complete by then."""
    ends = [each.t for each in uses if each.op == "written" and each.rank == write.rank and each.t >= write.t]
    return use.polls and use.t >= min(ends, default=write.t)
