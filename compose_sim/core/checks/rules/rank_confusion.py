"""Are RANK and LOCAL_RANK each used where they belong?"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from compose_sim.core.checks import Case, Result, failed, not_applicable, passed
from compose_sim.core.events.observations import Observation, Observed, RankObserved

QUESTION = "Are RANK and LOCAL_RANK each used where they belong?"

_MOST_BATCHES = 8
_FRAME = re.compile(r'File "([^"<]+)", line (\d+)')
_ORDINAL = "invalid device ordinal"
_FIX_SAMPLER = (
    "Give DistributedSampler no num_replicas and no rank (it asks the process group), or `dist.get_world_size()` "
    "and `dist.get_rank()`."
)
_FIX_INIT = "Call `dist.init_process_group()` without rank and world_size: it reads RANK and WORLD_SIZE, which the launcher sets."
_FIX_DEVICE = 'Take the device from LOCAL_RANK: `torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))`, `device_ids=[local_rank]`.'
_FIX_SHARD = "Divide the data by `dist.get_rank()` and `dist.get_world_size()`: LOCAL_RANK begins at 0 on every node."


def judge(case: Case) -> Result:
    """Look where the script used one number in the other's place; only ranks on which the two differ can tell."""
    observed = case.observed
    apart = [rank for rank in observed if rank.rank != rank.local_rank]
    if not apart:
        return not_applicable("RANK and LOCAL_RANK are the same on every rank: run on more than one node")
    result = _init(observed) or _devices(case, apart) or _samplers(observed) or _shards(observed)
    if result:
        return result
    if not any(observed.of("init", "loader", "device", "ddp")):
        return not_applicable("the script makes no process group and loads no data")
    return passed("no LOCAL_RANK where RANK belongs, and no RANK where LOCAL_RANK belongs")


def _init(observed: Observed) -> Result | None:
    """init_process_group with the numbers of the node in place of those of the world."""
    for rank in observed:
        seen, given = rank.last("init"), rank.last("given")
        if seen is None or given is None:
            continue
        told = seen["rank"] if seen["rank"] is not None else _number(seen["env_rank"])
        size = seen["world_size"] or _number(seen["env_world_size"])
        local_size, world_size = _number(given["local_world_size"]), _number(given["world_size"])
        if told is not None and told != rank.rank and told == rank.local_rank:
            what = f"rank {rank.rank} calls init_process_group as rank {told}, which is its LOCAL_RANK"
            return failed(what, fix=_FIX_INIT, ranks=(rank.rank,), **_at(seen))
        if size and size != world_size and size == local_size and len(observed.nodes) > 1:
            what = f"rank {rank.rank} calls init_process_group for {size} ranks, which is LOCAL_WORLD_SIZE; there are {world_size}"
            return failed(what, fix=_FIX_INIT, ranks=(rank.rank,), **_at(seen))
    return None


def _devices(case: Case, apart: Iterable[RankObserved]) -> Result | None:
    """A device that has the number of the rank, on every rank where that is not its place."""
    by_rank = list(_taken(apart))
    if by_rank and all(index == seen.rank for index, seen, _ in by_rank):
        index, seen, how = by_rank[0]
        local = case.observed.ranks[seen.rank].local_rank
        return failed(
            f"rank {seen.rank} takes GPU {index} ({how}), its RANK; on its node it is the one with LOCAL_RANK {local}",
            fix=_FIX_DEVICE,
            ranks=tuple(each.rank for _, each, _ in by_rank),
            **_at(seen),
        )
    return None if by_rank else _no_such_device(case.observed, case.cause or {})


def _no_such_device(observed: Observed, cause: Mapping[str, Any]) -> Result | None:
    """CUDA refused a device to ranks whose RANK is beyond their node's GPUs, and to no other."""
    refused = {rank.rank for rank in observed if _ORDINAL in str((rank.last("outcome") or {"raised": ""})["raised"])}
    if _ORDINAL in str(cause.get("message")) and cause.get("rank") in observed.ranks:
        refused.add(int(cause["rank"]))
    sizes = {node: len(ranks) for node, ranks in observed.nodes.items()}
    if not refused or any(rank < sizes[observed.ranks[rank].node] for rank in refused):
        return None
    rank = min(refused)
    return failed(
        f"rank {rank} asks for a GPU that its node does not have (invalid device ordinal), the ranks of the first node do not: "
        "the number is probably taken from RANK",
        fix=_FIX_DEVICE,
        ranks=tuple(sorted(refused)),
        **_raised_at(str(cause.get("traceback") or "")),
    )


def _raised_at(traceback: str) -> dict[str, Any]:
    """The innermost place of a traceback that is the person's own code."""
    frames = [(file, int(line)) for file, line in _FRAME.findall(traceback) if "/site-packages/" not in file]
    return {"file": frames[-1][0], "line": frames[-1][1]} if frames else {}


def _taken(ranks: Iterable[RankObserved]) -> Iterable[tuple[int, Observation, str]]:
    for rank in ranks:
        for seen in rank.of("device", "ddp", "init"):
            if seen.kind == "device":
                yield int(seen["index"]), seen, str(seen["how"])
            elif seen.kind == "init" and seen["device"] is not None:
                yield int(seen["device"]), seen, "init_process_group(device_id=…)"
            elif seen.kind == "ddp" and len(seen["device_ids"] or ()) == 1 and isinstance(seen["device_ids"][0], int):
                yield seen["device_ids"][0], seen, "DistributedDataParallel(device_ids=…)"


def _samplers(observed: Observed) -> Result | None:
    """A sampler that shares the data among the ranks of a node, as if there were no other node."""
    loaders = [each for each in observed.of("loader") if (each["sampling"] or {}).get("rank") is not None]
    for number in sorted({each["loader"] for each in loaders}):
        seen = {each.rank: each for each in loaders if each["loader"] == number}
        if set(seen) != set(observed.ranks) or not _one_data_set(observed, seen):
            continue
        told = {rank: (each["sampling"]["rank"], each["sampling"].get("num_replicas")) for rank, each in seen.items()}
        if all(told[rank.rank][0] == rank.local_rank for rank in observed):
            rank, each = next((rank, each) for rank, each in seen.items() if rank != observed.ranks[rank].local_rank)
            twin = next(other.rank for other in observed if told[other.rank][0] == told[rank][0])
            return failed(
                f"rank {rank} samples as rank {told[rank][0]} of {told[rank][1]}, its LOCAL_RANK: "
                f"it loads what rank {twin} loads, and {_rest(observed, told[rank][1])}",
                fix=_FIX_SAMPLER,
                ranks=(twin, rank),
                **_at(each, "made"),
            )
    return None


def _rest(observed: Observed, replicas: Any) -> str:
    if replicas == observed.world_size:
        return "the shares of other ranks are never loaded"
    return "every node goes through the whole data set"


def _one_data_set(observed: Observed, seen: dict[int, Observation]) -> bool:
    """Whether all ranks train one model on one data set: nodes may have data, or a model, of their own."""
    if any(each["sub_group"] for each in observed.of("ddp")):
        return False
    fingerprints = {each["fingerprint"] for each in seen.values()}
    return len(fingerprints) == 1


def _shards(observed: Observed) -> Result | None:
    """Samples divided by hand: those ranks that share a LOCAL_RANK, and no others, train on the same ones."""
    if any(each["sub_group"] for each in observed.of("ddp")) or len(observed.nodes) < 2:
        return None
    for kind in ("fed", "batch"):
        rows = {rank.rank: _rows(rank, kind) for rank in observed}
        if not all(rows.values()):
            continue
        groups: dict[Any, list[int]] = {}
        for rank, seen in rows.items():
            groups.setdefault(seen, []).append(rank)
        by_local: dict[int, list[int]] = {}
        for each in observed:
            by_local.setdefault(each.local_rank, []).append(each.rank)
        alike = sorted(by_local.values())
        if len(alike) > 1 and sorted(groups.values()) == alike and all(len(ranks) > 1 for ranks in alike):
            told = "; ".join(f"ranks {' and '.join(map(str, ranks))}" for ranks in alike)
            place = next((each for each in observed.of("loader", "ddp") if each["at"]), None)
            return failed(
                f"ranks of the same LOCAL_RANK, and no others, train on the same samples: {told}",
                fix=_FIX_SHARD,
                ranks=tuple(observed.ranks),
                **(_at(place, "made" if place.kind == "loader" else "at") if place else {}),
            )
    return None


def _rows(rank: RankObserved, kind: str) -> tuple[Any, ...] | None:
    """Hashes of the first samples; None where they are not known, or tell nothing because they are all the same."""
    seen = [tuple(each["rows"]) for each in rank.of(kind) if each["rows"]][:_MOST_BATCHES]
    return tuple(seen) if len({row for rows in seen for row in rows}) > 1 else None


def _number(text: Any) -> int | None:
    return int(text) if str(text).isdigit() else None


def _at(seen: Observation, key: str = "at") -> dict[str, Any]:
    at = seen[key] or seen["at"]
    return {"file": at[0], "line": at[1]} if at else {}
