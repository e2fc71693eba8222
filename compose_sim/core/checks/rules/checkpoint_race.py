"""Is every shared file written by one rank, and read when it is whole?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from compose_sim.core.checks import Case, Result, failed, not_applicable, passed
from compose_sim.core.checks.evidence.happens_before import Order
from compose_sim.core.events.observations import Observation, Observed

QUESTION = "Is every shared file written by one rank, and read when it is whole?"

_WRITERS = ("write", "update")
_READERS = ("read",)
_FIX_WRITE = "Let one rank write: `if dist.get_rank() == 0:` around it, or put the rank into the file's name."
_FIX_LOCAL = (
    "LOCAL_RANK is 0 once on every node: ask for RANK 0 (`if dist.get_rank() == 0:`) where the nodes share the folder."
)
_FIX_READ = (
    "Call `dist.barrier()` on all ranks between the writing and the reading. Or write to another name "
    "and `os.replace` it when it is whole."
)


def judge(case: Case) -> Result:
    """Look at the files that more than one rank opened, one of them to write."""
    observed = case.observed
    if observed.world_size < 2:
        return not_applicable("there is one rank only")
    files = _by_path(observed)
    written = {path for path, uses in files.items() if any(use["op"] in _WRITERS for use in uses)}
    if not written:
        return not_applicable("the script writes no file")
    order = Order(observed)
    for path in sorted(written):
        result = _written_twice(observed, order, path, files[path])
        if result:
            return result
    for path in sorted(written):
        result = _read_early(observed, order, path, files[path]) or _awaited_and_read(observed, path, files[path])
        if result:
            return result
    return passed(
        f"{len(written)} file{'s'[: len(written) > 1]} written, none by two ranks at a time or read unfinished"
    )


def _by_path(observed: Observed) -> dict[str, list[Observation]]:
    files: dict[str, list[Observation]] = {}
    for each in observed.of("file"):
        files.setdefault(str(each["path"]), []).append(each)
    return files


def _written_twice(observed: Observed, order: Order, path: str, uses: Sequence[Observation]) -> Result | None:
    rivals: set[int] = set()
    first: Observation | None = None
    for one, other in _pairs(observed, uses, _WRITERS, _WRITERS):
        if one.rank < other.rank and order.is_open(one, other) and not _is_handed_over(one, other, uses):
            rivals |= {one.rank, other.rank}
            first = first or one
    if first is None:
        return None
    locals_only = {rank.rank for rank in observed if rank.local_rank == 0}
    by_local = rivals == locals_only and len(observed.nodes) < observed.world_size
    who = f"ranks {', '.join(map(str, sorted(rivals)))}"
    why = ", those with LOCAL_RANK 0," if by_local else ""
    return failed(
        f"{who}{why} write {path} with nothing to keep them apart: the file is whatever the last of them leaves{_where(first)}",
        fix=_FIX_LOCAL if by_local else _FIX_WRITE,
        ranks=tuple(sorted(rivals)),
        **_at(first),
    )


def _awaited_and_read(observed: Observed, path: str, uses: Sequence[Observation]) -> Result | None:
    """A rank that waits until a file exists, and reads what another has only begun to write under this very name."""
    if any(each["to"] == path for each in observed.of("file") if each["op"] == "rename"):
        return None
    for write, read in _pairs(observed, uses, _WRITERS, _READERS):
        waits = [each for each in observed.ranks[read.rank].of("file") if each["op"] == "await"]
        here = [each for each in waits if each["steps"] == read["steps"] and each["sync"] == read["sync"]]
        others = any(each["path"] != path for each in here)  # a second file may say that the first is whole
        if here and not others and write["steps"] == read["steps"]:
            return failed(
                f"rank {read.rank} reads {path}{_where(read)} as soon as it exists: "
                f"rank {write.rank} may still write it{_where(write)}",
                fix=_FIX_READ,
                ranks=(write.rank, read.rank),
                **_at(read),
            )
    return None


def _read_early(observed: Observed, order: Order, path: str, uses: Sequence[Observation]) -> Result | None:
    for write, read in _pairs(observed, uses, _WRITERS, _READERS):
        same_place = write["steps"] == read["steps"]
        if same_place and order.is_open(write, read) and not _is_handed_over(write, read, uses):
            return failed(
                f"rank {read.rank} reads {path}{_where(read)} while rank {write.rank} may still write it{_where(write)}: "
                "no barrier lies between them",
                fix=_FIX_READ,
                ranks=(write.rank, read.rank),
                **_at(read),
            )
    return None


def _pairs(
    observed: Observed, uses: Sequence[Observation], ops: Sequence[str], others: Sequence[str]
) -> Iterator[tuple[Observation, Observation]]:
    """Two uses of the same file by two ranks: of one node where each node has its own."""
    for one in uses:
        for other in uses:
            if one["op"] in ops and other["op"] in others and one.rank != other.rank:
                together = observed.ranks[one.rank].node == observed.ranks[other.rank].node
                if together or not (one["private"] or other["private"]):
                    yield one, other


def _is_handed_over(write: Observation, use: Observation, uses: Sequence[Observation]) -> bool:
    """Whether the script waits for files to appear, and this one was whole by then."""
    ends = [each.t for each in uses if each["op"] == "written" and each.rank == write.rank and each.t >= write.t]
    return bool(use["polls"]) and use.t >= min(ends, default=write.t)


def _where(use: Observation) -> str:
    at = use["at"]
    return f" ({str(at[0]).rpartition('/')[2]}, line {at[1]})" if at else ""


def _at(use: Observation) -> dict[str, Any]:
    return {"file": use["at"][0], "line": use["at"][1]} if use["at"] else {}
