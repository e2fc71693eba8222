"""Judge whether RANK and LOCAL_RANK are each used where they belong."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from compose_sim.core.checks import Case, Result, failed, not_applicable, passed
from compose_sim.core.events.observations import Observed, RankObserved
from compose_sim.node.records.data import Batch, LoaderInfo, TrainingForward
from compose_sim.node.records.devices_and_files import DeviceChosen
from compose_sim.node.records.models import DdpModel
from compose_sim.node.records.precautions import ReplicatedTensor
from compose_sim.node.records.process_groups import Collective, InitProcessGroup, UntrackedWait
from compose_sim.node.records.record import Place
from compose_sim.node.records.script import LaunchEnvironment, ScriptEnd

QUESTION = "Are RANK and LOCAL_RANK each used where they belong?"

_MOST_BATCHES = 8
_FRAME = re.compile(r'File "([^"<]+)", line (\d+)')
_ORDINAL = "invalid device ordinal"
_FIX_SAMPLER = (
    "Call DistributedSampler without num_replicas and rank, which it takes from the process group, or pass `dist.get_world_size()` "
    "and `dist.get_rank()`."
)
_FIX_INIT = "Call `dist.init_process_group()` without rank and world_size: it reads RANK and WORLD_SIZE, which the launcher sets."
_FIX_DEVICE = 'Take the device from LOCAL_RANK: `torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))`, `device_ids=[local_rank]`.'
_FIX_SHARD = "Divide the data by `dist.get_rank()` and `dist.get_world_size()`: LOCAL_RANK starts at 0 on every node."


@dataclass(frozen=True, slots=True)
class _Device:
    rank: int
    device: int
    how: str
    at: Place | None


def judge(case: Case) -> Result:
    """Look for one number used instead of the other, on the ranks on which the two differ."""
    observed = case.observed
    apart = [rank for rank in observed if rank.rank != rank.local_rank]
    if not apart:
        return not_applicable("RANK and LOCAL_RANK are the same on every rank: run on more than one node")
    result = _init(observed) or _devices(case, apart) or _samplers(observed) or _shards(observed)
    if result:
        return result
    if not any(observed.of(InitProcessGroup, LoaderInfo, DeviceChosen)) and not observed.first(DdpModel):
        return not_applicable("the script makes no process group and loads no data")
    return passed("LOCAL_RANK is not used as RANK, nor RANK as LOCAL_RANK")


def _init(observed: Observed) -> Result | None:
    """Find calls of init_process_group with the numbers of the node instead of those of the world."""
    for rank in observed:
        init, launched = rank.last(InitProcessGroup), rank.last(LaunchEnvironment)
        if init is None or launched is None:
            continue
        number = init.given_rank if init.given_rank is not None else init.env_rank
        size = init.given_world_size or init.env_world_size
        local_size, world_size = launched.local_world_size, launched.world_size
        if number is not None and number != rank.rank and number == rank.local_rank:
            what = f"rank {rank.rank} calls init_process_group with rank {number}, its LOCAL_RANK"
            return failed(what, fix=_FIX_INIT, at=init.at, ranks=(rank.rank,))
        if size and size != world_size and size == local_size and len(observed.nodes) > 1:
            what = f"rank {rank.rank} calls init_process_group with world_size {size}, LOCAL_WORLD_SIZE; there are {world_size} ranks"
            return failed(what, fix=_FIX_INIT, at=init.at, ranks=(rank.rank,))
    return None


def _devices(case: Case, apart: Iterable[RankObserved]) -> Result | None:
    """Find devices with the number of the rank, on every rank whose LOCAL_RANK is another number."""
    chosen = [each for rank in apart for each in _chosen(rank)]
    if not chosen:
        return _no_such_device(case)
    if any(each.device != each.rank for each in chosen):
        return None
    first = chosen[0]
    local = case.observed.ranks[first.rank].local_rank
    return failed(
        f"rank {first.rank} uses GPU {first.device} ({first.how}), its RANK; its LOCAL_RANK is {local}",
        fix=_FIX_DEVICE,
        at=first.at,
        ranks=[each.rank for each in chosen],
    )


def _chosen(rank: RankObserved) -> Iterator[_Device]:
    for each in rank.of(DeviceChosen, DdpModel, InitProcessGroup):
        if isinstance(each, DeviceChosen):
            yield _Device(rank.rank, each.device, each.how, each.at)
        elif isinstance(each, DdpModel) and len(each.device_ids) == 1:
            yield _Device(rank.rank, each.device_ids[0], "DistributedDataParallel(device_ids=…)", each.at)
        elif isinstance(each, InitProcessGroup) and each.device is not None:
            yield _Device(rank.rank, each.device, "init_process_group(device_id=…)", each.at)


def _no_such_device(case: Case) -> Result | None:
    """Find ranks to which CUDA refused a device: those whose RANK exceeds the node's GPUs, and no others."""
    observed, cause = case.observed, case.cause
    ends = (rank.last(ScriptEnd) for rank in observed)
    refused = {end.rank for end in ends if end and _ORDINAL in (end.raised or "")}
    if cause and cause.rank is not None and _ORDINAL in cause.message:
        refused |= {cause.rank} & observed.ranks.keys()
    sizes = {node: len(ranks) for node, ranks in observed.nodes.items()}
    if not refused or any(rank < sizes[observed.ranks[rank].node] for rank in refused):
        return None
    return failed(
        f"rank {min(refused)} asks for a GPU that its node does not have ({_ORDINAL}), but no rank of the first node does: "
        "the index is probably RANK",
        fix=_FIX_DEVICE,
        at=_raised_at(case.evidence),
        ranks=sorted(refused),
    )


def _raised_at(traceback: str) -> Place | None:
    """Return the innermost user code in a traceback."""
    frames = [(file, int(line)) for file, line in _FRAME.findall(traceback) if "/site-packages/" not in file]
    return frames[-1] if frames else None


def _samplers(observed: Observed) -> Result | None:
    """Find a sampler that divides the data among the ranks of a node, as if there were no other nodes."""
    loaders = [each for each in observed.of(LoaderInfo) if each.sampling.rank is not None]
    for number in sorted({each.loader for each in loaders}):
        seen = {each.rank: each for each in loaders if each.loader == number}
        if set(seen) != set(observed.ranks) or not _one_data_set(observed, seen):
            continue
        # With one replica, nothing is divided, as in tensor parallelism over all ranks: sampler-overlap judges that.
        parts: dict[int | None, list[int]] = {}
        for rank, each in seen.items():
            parts.setdefault(each.sampling.rank, []).append(rank)
        if all(each.sampling.num_replicas == 1 for each in seen.values()) or _share_models(observed, parts.values()):
            continue
        if all(each.sampling.rank == observed.ranks[rank].local_rank for rank, each in seen.items()):
            rank, each = next((rank, each) for rank, each in seen.items() if rank != observed.ranks[rank].local_rank)
            twin = next(rank for rank in sorted(seen) if seen[rank].sampling.rank == each.sampling.rank)
            replicas = each.sampling.num_replicas
            rest = "the other parts are never loaded"
            if replicas != observed.world_size:
                rest = "every node loads the whole data set"
            return failed(
                f"rank {rank} samples as rank {each.sampling.rank} of {replicas}, its LOCAL_RANK: "
                f"it loads the same samples as rank {twin}, and {rest}",
                fix=_FIX_SAMPLER,
                at=each.made or each.at,
                ranks=(twin, rank),
            )
    return None


def _one_data_set(observed: Observed, seen: Mapping[int, LoaderInfo]) -> bool:
    """Return whether all ranks train one model on one data set; nodes may have their own data, or their own model."""
    if any(each.sub_group for each in observed.of(DdpModel)):
        return False
    return len({each.fingerprint for each in seen.values()}) == 1


def _share_models(observed: Observed, groups: Iterable[Collection[int]]) -> bool:
    """Return whether ranks of a group, which load the same samples, exchange tensors of their own, as the parts of one model do."""
    for ranks in groups:
        for each in (
            each for rank in ranks for each in observed.ranks[rank].of(Collective, ReplicatedTensor, UntrackedWait)
        ):
            if isinstance(each, UntrackedWait):
                if "send" in each.how or "recv" in each.how:
                    return True
                continue
            members = each.ranks if isinstance(each, ReplicatedTensor) else () if each.by_fsdp else each.group
            if len(members) > 1 and set(members) <= set(ranks):
                return True
    return False


def _shards(observed: Observed) -> Result | None:
    """Find samples that are divided by hand: the ranks that share a LOCAL_RANK, and no others, train on the same samples."""
    if any(each.sub_group for each in observed.of(DdpModel)) or len(observed.nodes) < 2:
        return None
    by_local: dict[int, list[int]] = {}
    for each in observed:
        by_local.setdefault(each.local_rank, []).append(each.rank)
    twins = sorted(by_local.values())
    if len(twins) < 2 or any(len(ranks) < 2 for ranks in twins) or _share_models(observed, twins):
        return None
    for kind in (TrainingForward, Batch):
        rows = {rank.rank: _rows(rank, kind) for rank in observed}
        alike: dict[Any, list[int]] = {}
        for rank, seen in rows.items():
            alike.setdefault(seen, []).append(rank)
        if all(rows.values()) and sorted(alike.values()) == twins:
            listed = "; ".join(f"ranks {' and '.join(map(str, ranks))}" for ranks in twins)
            places = (
                (each.made or each.at) if isinstance(each, LoaderInfo) else each.at
                for each in observed.of(LoaderInfo, DdpModel)
                if each.at
            )
            return failed(
                f"exactly the ranks with the same LOCAL_RANK train on the same samples: {listed}",
                fix=_FIX_SHARD,
                at=next(places, None),
                ranks=sorted(observed.ranks),
            )
    return None


def _rows(rank: RankObserved, kind: type[TrainingForward | Batch]) -> tuple[tuple[int, ...], ...] | None:
    """Return hashes of the first samples; None if they are unknown, or useless because they are all the same."""
    seen = [each.rows for each in rank.of(kind) if each.rows][:_MOST_BATCHES]
    return tuple(seen) if len({row for rows in seen for row in rows}) > 1 else None
