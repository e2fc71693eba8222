"""Records of two nodes of two ranks, made by hand for the checks that compare ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from compose_sim.core.checks import Case, Result
from compose_sim.core.events.observations import Observed, RankObserved, parse_rank
from compose_sim.node.rank.observations import encode
from compose_sim.node.records.devices_and_files import FileOp, FileUse
from compose_sim.node.records.process_groups import Collective
from compose_sim.node.records.record import Place, Record
from compose_sim.node.records.script import LaunchEnvironment

Records = list[Record]
WORLD = (0, 1, 2, 3)


def observe(rank: int, records: Sequence[Record], node: str = "node-0") -> RankObserved:
    """Write the records as a rank does, and read them again."""
    seen = parse_rank(node, rank, [encode(each, 1.0 + index / 1000) for index, each in enumerate(records)])
    assert not seen.dropped
    return seen


def case(ranks: Mapping[int, Sequence[Record]], verdict: str = "passed", **more: Any) -> Case:
    """Make a case of ranks on one node, all with LOCAL_RANK 0."""
    seen = {rank: observe(rank, records) for rank, records in ranks.items()}
    return Case(observed=Observed(ranks=seen), verdict=verdict, **more)


def two_nodes(records_of: Callable[[int], Sequence[Record]], *, verdict: str = "passed", **more: Any) -> Case:
    """Make a case in which rank r wrote `records_of(r)`; ranks 0 and 1 are on node-0."""
    ranks = {}
    for rank in WORLD:
        launched = LaunchEnvironment(rank % 2, world_size=4, local_world_size=2, master_addr="10.0.0.1")
        ranks[rank] = observe(rank, [launched, *records_of(rank)], f"node-{rank // 2}")
    return Case(observed=Observed(ranks=ranks), verdict=verdict, **more)


def at(result: Result) -> Place | None:
    """Return the line that a result points at, as records hold it."""
    return (result.place.file, result.place.line or 0) if result.place else None


def collective(op: str, *shape: int, line: int = 5, **more: Any) -> Collective:
    facts = {"group": WORLD, "name": "0", "shapes": (shape,), "dtype": "float32", "at": ("/work/train.py", line)}
    return Collective(op, **{**facts, **more})


def file(op: FileOp, path: str = "/work/model.pt", **more: Any) -> FileUse:
    return FileUse(op, path, private=path.startswith("/tmp/"), steps=3, at=("/work/train.py", 9), **more)
