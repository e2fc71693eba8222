"""Judge whether ranks use their numbers, their files, their processors and their time as several machines would."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

from compose_sim.core.checks import (
    OPTIMIZER_STEPS,
    SEVERAL_NODES,
    SEVERAL_RANKS,
    WARNED,
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
from compose_sim.core.checks.sketches import optimizers
from compose_sim.core.checks.tolerances import LOSS_FACTOR, ROUNDING_32_BIT_SUM
from compose_sim.core.events.observations import Observed, RankObserved
from compose_sim.core.report.tracebacks import innermost_line
from compose_sim.node.records.data import Batch, LoaderInfo, TrainingForward
from compose_sim.node.records.devices_and_files import DeviceChosen, FileUse, VariableSet
from compose_sim.node.records.models import DdpModel, OptimizerStep, RepeatedPass
from compose_sim.node.records.precautions import ReplicatedTensor
from compose_sim.node.records.process_groups import Collective, InitProcessGroup, UntrackedWait
from compose_sim.node.records.record import Place
from compose_sim.node.records.script import LaunchEnvironment, ScriptEnd
from compose_sim.node.records.timings import StepTimes, Wait

_MAX_BATCHES = 8
_ORDINAL = "invalid device ordinal"
_FIX_INIT = "Call `dist.init_process_group()` without rank and world_size: it reads RANK and WORLD_SIZE, which the launcher sets."
_FIX_DEVICE = 'Take the device from LOCAL_RANK: `torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))`, `device_ids=[local_rank]`.'


@dataclass(frozen=True, slots=True)
class _Device:
    rank: int
    device: int
    how: str
    at: Place | None


@check("rank-confusion", "Are RANK and LOCAL_RANK each used where they belong?")
def rank_confusion(case: Case) -> Result:
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
        at=innermost_line(case.evidence),
        ranks=sorted(refused),
    )


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
                fix="Call DistributedSampler without num_replicas and rank, which it takes from the process group, or pass "
                "`dist.get_world_size()` and `dist.get_rank()`.",
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
                fix="Divide the data by `dist.get_rank()` and `dist.get_world_size()`: LOCAL_RANK starts at 0 on every node.",
                at=next(places, None),
                ranks=sorted(observed.ranks),
            )
    return None


def _rows(rank: RankObserved, kind: type[TrainingForward | Batch]) -> tuple[tuple[int, ...], ...] | None:
    """Return hashes of the first samples; None if they are unknown, or useless because they are all the same."""
    seen = [each.rows for each in rank.of(kind) if each.rows][:_MAX_BATCHES]
    return tuple(seen) if len({row for rows in seen for row in rows}) > 1 else None


_LOOPBACK = re.compile(r"^(localhost|127\.\d+\.\d+\.\d+|::1|\[::1\]|0\.0\.0\.0|ip6-localhost)$")
_TCP = re.compile(r"^tcp://(\[[^\]]*\]|[^:/]*)")
_PRIVATE = re.compile(r"^file://(/tmp|/var/tmp|/dev/shm)/")
_WRITERS = ("write", "update", "append", "create", "rename", "written")


@check("host-dependence", "Would it work if every node were a separate machine?", SEVERAL_NODES)
def host_dependence(case: Case) -> Result:
    """Look at the address at which ranks meet, and at files in folders that machines do not share."""
    observed = case.observed
    result = _address(observed)
    if result:
        return result
    files = _files(observed)
    if files:  # the nodes of this run shared the folder: whether those of a cluster do is not known
        return replace(files, status=WARNED) if case.verdict == "passed" else files
    if not any(observed.of(InitProcessGroup, FileUse)):
        return not_applicable("the script makes no process group and opens no file of its own")
    return passed("ranks meet at the launcher's address, and no node reads a file that only another node has")


def _address(observed: Observed) -> Result | None:
    """Find an address that the script itself chose, and that other machines could not reach."""
    for rank in observed:
        init, launched = rank.last(InitProcessGroup), rank.last(LaunchEnvironment)
        if init is None or launched is None or not _spans_nodes(observed, init, launched):
            continue
        method, address = init.init_method, init.master_addr or ""
        tcp = _TCP.match(method)
        if tcp and _LOOPBACK.match(tcp[1]):
            return _say_address(observed, init, f"init_process_group uses {method}")
        if _PRIVATE.match(method):
            return _say_address(observed, init, f"init_process_group uses {method}, a file on one node")
        if init.store_host and _LOOPBACK.match(init.store_host):
            return _say_address(observed, init, f"init_process_group uses a store at {init.store_host}")
        chosen = [each for each in rank.of(VariableSet) if (each.name, each.value) == ("MASTER_ADDR", address)]
        is_own = any(each.changes or each.written for each in chosen) or address != launched.master_addr
        if method.startswith("env://") and _LOOPBACK.match(address) and is_own:
            return _say_address(observed, chosen[-1] if chosen else init, f"the script sets MASTER_ADDR to {address}")
    return None


def _spans_nodes(observed: Observed, init: InitProcessGroup, launched: LaunchEnvironment) -> bool:
    """Return whether the group is to have ranks on several nodes."""
    size = init.given_world_size or init.env_world_size or launched.world_size or 0
    return size > max(len(ranks) for ranks in observed.nodes.values())


def _say_address(observed: Observed, seen: InitProcessGroup | VariableSet, what: str) -> Result:
    return failed(
        f"{what}: if the {len(observed.nodes)} nodes were separate machines, each would find only itself there",
        fix="Use the address that the launcher sets: remove the line that changes it, and call `init_process_group()` without "
        "init_method, which reads MASTER_ADDR and MASTER_PORT.",
        at=seen.at,
        ranks=(seen.rank,),
    )


def _files(observed: Observed) -> Result | None:
    """Find a file in a private folder, written on one node only, that another node reads."""
    uses: dict[str, list[FileUse]] = {}
    for each in observed.of(FileUse):
        if each.private and each.op != "rename":
            uses.setdefault(each.path, []).append(each)
        elif each.op == "rename" and each.to_private and each.to:
            uses.setdefault(each.to, []).append(each)
    for path, seen in sorted(uses.items()):
        writers = [each for each in seen if each.op in _WRITERS]
        result = _read_elsewhere(observed, path, writers, [each for each in seen if each.op == "read"])
        if result:
            return result
    return None


def _read_elsewhere(
    observed: Observed, path: str, writers: Sequence[FileUse], readers: Sequence[FileUse]
) -> Result | None:
    homes = {observed.ranks[each.rank].node for each in writers}
    for read in readers:
        node = observed.ranks[read.rank].node
        before = [each for each in writers if each.t <= read.t]
        if before and node not in homes:
            write = before[0]
            return failed(
                f"rank {read.rank} on {node} reads {path}{where(read.at)}, which exists only on "
                f"{observed.ranks[write.rank].node}: rank {write.rank} wrote it there{where(write.at)}",
                fix="Keep files that other nodes read in storage that all nodes share (here: $COMPOSESIM_SHARED), or let one rank "
                "per node (LOCAL_RANK 0) write them.",
                at=read.at,
                ranks=(write.rank, read.rank),
            )
    return None


@check("nondeterminism", "Does a repeated forward pass give the same bits?")
def nondeterminism(case: Case) -> Result:
    """Compare ranks: if only some of them cannot repeat their own results, it is not the code that all of them run."""
    passes = {rank.rank: list(rank.of(RepeatedPass)) for rank in case.observed}
    repeated = {rank: mine for rank, mine in passes.items() if mine}
    if not repeated:
        return not_applicable(
            "no forward pass was repeated: `composesim check` repeats those of models that one rank can run alone"
        )
    different = {rank: [each for each in mine if not each.equal] for rank, mine in repeated.items()}
    unequal = {rank: mine for rank, mine in different.items() if mine}
    count = sum(map(len, repeated.values()))
    if not unequal:
        return passed(f"{count} forward passes repeated with the same inputs and random numbers: the same bits")
    rank, mine = max(unequal.items(), key=lambda each: max(one.difference for one in each[1]))
    worst = max(mine, key=lambda each: each.difference)
    size = f"by {worst.difference:.2g} of the largest value" if isfinite(worst.difference) else "in shape"
    detail = (
        f"{len(mine)} of {len(repeated[rank])} repeated forward passes of {worst.type} on rank {rank} gave another result, e.g. number "
        f"{worst.number} ({size})"
    )
    if 2 * len(unequal) < len(repeated) and worst.difference > ROUNDING_32_BIT_SUM:
        node = case.observed.ranks[rank].node
        others = sorted(set(repeated) - set(unequal))
        return failed(
            f"{detail}, while {ranks_text(others)} repeat theirs exactly: silent data corruption on {node}",
            fix=f"Take the machine of {node} out of the job and test its processor, GPU and memory.",
            ranks=sorted(unequal),
        )
    return warned(
        f"{detail}: the model uses operations whose result is not determined, or something that is not a module's state",
        fix="Call `torch.use_deterministic_algorithms(True)`, and draw random numbers only from generators that are seeded.",
        ranks=sorted(unequal),
    )


_MIN_WAIT_S = 5.0
_QUEUED = 0.2  # of a wait: the share in which the late rank waited for a processor
_NOT_PREPARED = ("init_process_group", "DDP's gradient all-reduce")
_MIN_REDUCTIONS = 4  # reductions per step


@check("wasted-time", "Do ranks work all the time, and reduce gradients once per step?", SEVERAL_RANKS, OPTIMIZER_STEPS)
def wasted_time(case: Case) -> Result:
    """Look at the waits before the first step, and at the reductions of each step."""
    return (
        _prepares_alone(case.observed)
        or _reduces_often(case.observed)
        or passed(
            "no rank kept the others waiting for long before the first step, nor reduced its gradients several times a step"
        )
    )


def _prepares_alone(observed: Observed) -> Result | None:
    """Find the wait before the first step in which most ranks lost the most time."""
    waits: dict[tuple[str, int], dict[int, Wait]] = {}
    for times in observed.of(StepTimes):
        for wait in times.waits if times.step <= 1 else ():
            waits.setdefault((wait.group, wait.sequence), {})[times.rank] = wait
    queued = {each.rank: each.queued for each in observed.of(StepTimes) if each.queued}
    worst: tuple[float, dict[int, Wait], list[int]] | None = None
    for (group, _), by_rank in waits.items():
        first = by_rank[min(by_rank)]
        # In the first backward pass, ranks wait for a first batch that loads slowly: training has begun. So it has for a stage that
        # waits for the message of another stage's first pass, or until its own message is taken.
        if len(by_rank) < max(2, first.size) or ">" in group or first.what.startswith(_NOT_PREPARED):
            continue
        late = [rank for rank, wait in by_rank.items() if wait.lasted < _MIN_WAIT_S * 1e6 / 2]
        lost = min((wait.lasted / 1e6 for rank, wait in by_rank.items() if rank not in late), default=0.0)
        if any(queued.get(rank, 0.0) > _QUEUED * lost for rank in late):
            continue  # the machine was busy
        if lost >= _MIN_WAIT_S and 0 < 2 * len(late) <= len(by_rank) and (worst is None or lost > worst[0]):
            worst = lost, by_rank, late
    if worst is None:
        return None
    lost, by_rank, late = worst
    waiting = [rank for rank in by_rank if rank not in late]
    return warned(
        f"{ranks_text(waiting)} waited {lost:.0f} s for {ranks_text(late)} before the first step, in {by_rank[waiting[0]].what}",
        fix="Prepare the data once, before the job or in a job of its own, and let every rank read the result; or divide the work "
        "among the ranks.",
        ranks=sorted(late),
    )


def _reduces_often(observed: Observed) -> Result | None:
    """Find steps that accumulate gradients over several backward passes, each of which reduces them over the ranks."""
    sketched = [
        (each.index, step)
        for each in optimizers(observed)
        for by_rank in each.steps.values()
        for step in by_rank.values()
    ]
    times = {optimizer: step.mean_times * step.backwards for optimizer, step in sketched if step.mean_times}
    # Backward passes that do not add to these gradients are those of another model, as in a GAN.
    added = {optimizer: step.backwards for optimizer, step in sketched}
    found: dict[int, list[tuple[OptimizerStep, int]]] = {}
    for rank in observed:
        for step in rank.of(OptimizerStep):
            for model in step.models:
                found.setdefault(step.optimizer, []).append(
                    (step, model.reduced if model.reduced == model.forwards == step.backwards else 0)
                )
    for optimizer, steps in sorted(found.items()):
        counts = {reduced for _, reduced in steps}
        count = max(counts)
        accumulates = count >= _MIN_REDUCTIONS or abs(times.get(optimizer, 0.0) - 1) < LOSS_FACTOR
        step = steps[0][0]
        is_meant = any(each.retained or each.within > 1 for each, _ in steps)
        if len(counts) == 1 and 1 < count == added.get(optimizer, count) and accumulates and not is_meant:
            return warned(
                f"each step is preceded by {count} backward passes, and each of them reduces all gradients: {count} all-reduces of "
                "the model per step, where one is enough",
                fix="Run all micro-batches but the last of a step, forward and backward, under `with ddp_model.no_sync():`.",
                at=step.at,
            )
    return None
