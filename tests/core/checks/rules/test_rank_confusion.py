"""LOCAL_RANK in RANK's place fails in init, samplers and shards, RANK in LOCAL_RANK's on devices; the right ones pass."""

from __future__ import annotations

from compose_sim.core.checks import FAILED, NOT_APPLICABLE, PASSED
from compose_sim.core.checks.rules.machines import rank_confusion
from compose_sim.node.records.data import LoaderInfo, Sampling, TrainingForward
from compose_sim.node.records.devices_and_files import DeviceChosen
from compose_sim.node.records.process_groups import InitProcessGroup, UntrackedWait
from compose_sim.node.records.record import Record
from compose_sim.node.records.script import LaunchEnvironment, ScriptEnd
from tests.core.checks.rules.cluster import WORLD, case, collective, two_nodes
from tests.core.checks.rules.loading import loader
from tests.core.checks.rules.replicas import ddp

DDP = ddp(WORLD)


def sampler(rank: int, replicas: int = 4) -> LoaderInfo:
    return loader(sampling=Sampling(rank=rank, num_replicas=replicas))


def test_a_sampler_with_local_rank_fails() -> None:
    result = rank_confusion.judge(two_nodes(lambda rank: [DDP, sampler(rank % 2)]))
    assert result.status == FAILED
    assert result.detail.startswith("rank 2 samples as rank 0 of 4, its LOCAL_RANK")
    assert rank_confusion.judge(two_nodes(lambda rank: [DDP, sampler(rank)])).status == PASSED


def test_a_sampler_within_a_group_of_a_node_passes() -> None:
    assert (
        rank_confusion.judge(two_nodes(lambda rank: [ddp(WORLD, sub_group=True), sampler(rank % 2, 2)])).status
        == PASSED
    )


def test_a_sampler_that_divides_nothing_passes() -> None:
    one_rank_per_node = case({rank: [LaunchEnvironment(0), sampler(0, 1)] for rank in WORLD})
    assert rank_confusion.judge(one_rank_per_node).status == PASSED


def test_a_sampler_by_node_passes_if_ranks_of_two_nodes_hold_parts_of_one_model() -> None:
    def of_a_stage(rank: int, *more: Record) -> list[Record]:
        return [sampler(rank % 2, 2), *more]

    across_nodes = [collective("all_reduce", 128, group=(rank % 2, 2 + rank % 2)) for rank in WORLD]
    assert rank_confusion.judge(two_nodes(lambda rank: of_a_stage(rank, across_nodes[rank]))).status == PASSED
    assert rank_confusion.judge(two_nodes(lambda rank: of_a_stage(rank, UntrackedWait("send")))).status == PASSED
    assert (
        rank_confusion.judge(two_nodes(lambda rank: of_a_stage(rank, collective("all_reduce", 128)))).status == FAILED
    )


def test_init_with_local_rank_fails() -> None:
    assert rank_confusion.judge(
        two_nodes(lambda rank: [InitProcessGroup(given_rank=rank % 2, given_world_size=4)])
    ).ranks == (2,)
    assert (
        rank_confusion.judge(two_nodes(lambda rank: [InitProcessGroup(given_rank=rank, given_world_size=4)])).status
        == PASSED
    )


def test_a_device_with_the_ranks_number_fails() -> None:
    assert rank_confusion.judge(two_nodes(lambda rank: [DeviceChosen(rank, "torch.cuda.set_device")])).ranks == (2, 3)
    assert (
        rank_confusion.judge(two_nodes(lambda rank: [DDP, DeviceChosen(rank % 2, "torch.cuda.set_device")])).status
        == PASSED
    )
    refused = ScriptEnd("CUDA error: invalid device ordinal")
    assert rank_confusion.judge(
        two_nodes(lambda rank: [DDP, *([refused] if rank > 1 else [])], verdict="failed")
    ).ranks == (2, 3)
    assert rank_confusion.judge(two_nodes(lambda rank: [DDP, refused], verdict="failed")).status == PASSED


def test_shards_by_local_rank_fail() -> None:
    def fed(*rows: int) -> list[Record]:
        return [DDP, TrainingForward(0, WORLD, 0, rows)]

    assert rank_confusion.judge(two_nodes(lambda rank: fed(rank % 2, 10 + rank % 2))).status == FAILED
    assert rank_confusion.judge(two_nodes(lambda rank: fed(1, 2))).status == PASSED


def test_one_node_cannot_tell() -> None:
    one_node = case({rank: [LaunchEnvironment(rank)] for rank in range(2)})
    assert rank_confusion.judge(one_node).status == NOT_APPLICABLE
