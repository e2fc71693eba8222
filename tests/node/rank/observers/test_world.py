"""Collectives, files, devices and losses are noted as they happen, and the script computes and pickles what it would without us."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.node.harness import Cluster

pytestmark = pytest.mark.train

SCRIPT = """
import os, pickle, sys, torch, torch.distributed as dist
from pathlib import Path
dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(3) * rank
dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
dist.broadcast(tensor, src=1)
pair = dist.new_group([0, 1])
dist.all_reduce(tensor, group=pair)
dist.barrier()
assert pickle.loads(pickle.dumps(dist.all_reduce)) is dist.all_reduce

def compiled(x):
    y = x * 2
    dist.all_reduce(y)
    return y + 1

print("compiled", torch.compile(compiled, backend="aot_eager")(torch.ones(2)).tolist())
Path("plain.txt").write_text("x") if rank == 0 else None
torch.save(tensor, f"saved-{rank}.pt")
torch.load(f"saved-{rank}.pt")
weight = torch.nn.Parameter(torch.ones(1))
(weight * 2.5).sum().backward()
sys.stdout.flush()
try:
    dist.broadcast(tensor, src=7)
except Exception as error:
    print("raised", type(error).__name__)
dist.destroy_process_group()
"""


def observed(cluster: Cluster, rank: int) -> list[dict[str, Any]]:
    (file,) = (cluster.folder / "observations").glob(f"*.{rank}.0.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_the_world_is_noted(cluster: Callable[..., Cluster]) -> None:
    made = cluster(SCRIPT, nproc=2)
    made.cwd = made.folder.parent / "work"
    made.start(1)
    assert set(made.exit_codes().values()) == {0}, made.log(0)
    seen = observed(made, 0)
    assert not [each for each in seen if each["kind"] == "observer-failed"]
    collectives = [each for each in seen if each["kind"] == "collective"]
    assert [each["op"] for each in collectives][:5] == ["all_reduce", "broadcast", "new_group", "all_reduce", "barrier"]
    assert (collectives[0]["reduce"], collectives[0]["shape"], collectives[0]["at"][1]) == ("MAX", [3], 7)
    assert (collectives[1]["root"], collectives[3]["group"]) == (1, [0, 1])
    assert collectives[3]["name"] != collectives[0]["name"]
    assert "compiled [5.0, 5.0]" in made.log(0)
    files = [(each["op"], each["path"].rpartition("/")[2], each["private"]) for each in seen if each["kind"] == "file"]
    assert files == [
        ("write", "plain.txt", False),
        ("write", "saved-0.pt", False),
        ("written", "saved-0.pt", False),
        ("read", "saved-0.pt", False),
    ]
    assert [each["value"] for each in seen if each["kind"] == "loss"] == [2.5]
    assert [each["raised"] for each in seen if each["kind"] == "outcome"] == [None]
