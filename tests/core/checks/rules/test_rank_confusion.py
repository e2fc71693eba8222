"""LOCAL_RANK in RANK's place fails in init, samplers and shards, RANK in LOCAL_RANK's on devices; the right ones pass."""

from __future__ import annotations

from typing import Any

from compose_sim.core.checks import FAILED, NOT_APPLICABLE, PASSED
from compose_sim.core.checks.rules.rank_confusion import judge
from tests.core.checks.rules.cluster import two_nodes
from tests.core.checks.rules.loading import loader
from tests.core.checks.rules.replicas import case

DDP = {"kind": "ddp", "ddp": 0, "at": ["/work/t.py", 4], "ranks": [0, 1, 2, 3], "sub_group": False}


def sampler(rank: int, replicas: int = 4) -> dict[str, Any]:
    return loader(sampling={"rank": rank, "num_replicas": replicas})


def test_a_sampler_with_local_rank_fails() -> None:
    result = judge(two_nodes(lambda rank: [DDP, sampler(rank % 2)]))
    assert result.status == FAILED
    assert result.detail.startswith("rank 2 samples as rank 0 of 4, its LOCAL_RANK: it loads what rank 0 loads")
    assert judge(two_nodes(lambda rank: [DDP, sampler(rank)])).status == PASSED


def test_a_sampler_within_a_group_of_a_node_passes() -> None:
    assert judge(two_nodes(lambda rank: [{**DDP, "sub_group": True}, sampler(rank % 2, 2)])).status == PASSED


def test_init_with_local_rank_fails() -> None:
    init = {"kind": "init", "world_size": 4, "env_rank": "0", "at": ["/work/t.py", 2]}
    assert judge(two_nodes(lambda rank: [{**init, "rank": rank % 2}])).ranks == (2,)
    assert judge(two_nodes(lambda rank: [{**init, "rank": rank}])).status == PASSED


def test_a_device_with_the_ranks_number_fails() -> None:
    device = {"kind": "device", "how": "torch.cuda.set_device", "at": ["/work/t.py", 2]}
    assert judge(two_nodes(lambda rank: [{**device, "index": rank}])).ranks == (2, 3)
    assert judge(two_nodes(lambda rank: [DDP, {**device, "index": rank % 2}])).status == PASSED
    refused = {"kind": "outcome", "raised": "CUDA error: invalid device ordinal"}
    assert judge(two_nodes(lambda rank: [DDP, *([refused] if rank > 1 else [])], verdict="failed")).ranks == (2, 3)
    assert judge(two_nodes(lambda rank: [DDP, refused], verdict="failed")).status == PASSED


def test_shards_by_local_rank_fail() -> None:
    assert judge(two_nodes(lambda rank: [DDP, {"kind": "fed", "rows": [rank % 2, 10 + rank % 2]}])).status == FAILED
    assert judge(two_nodes(lambda rank: [DDP, {"kind": "fed", "rows": [1, 2]}])).status == PASSED


def test_one_node_cannot_tell() -> None:
    one_node = case({rank: [{"kind": "given", "local_rank": str(rank)}] for rank in range(2)})
    assert judge(one_node).status == NOT_APPLICABLE
