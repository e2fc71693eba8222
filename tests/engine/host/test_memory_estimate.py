"""The estimate counts what two steps allocate, and neither trains nor writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from compose_sim.core.plan.limits import memory_lines, memory_of_nodes, rank_memory
from tests.builders import a_plan
from tests.cli.conftest import Project

SCRIPT = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
inputs = torch.randn(128, 100)
data = TensorDataset(inputs[inputs.sum(1) > -1e9])  # needs values
model = DDP(torch.nn.Linear(100, 1000, bias=False))
optimizer = torch.optim.Adam(model.parameters())
for inputs, in DataLoader(data, batch_size=16, sampler=DistributedSampler(data)):
    loss = model(inputs).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item())
    torch.save(model.state_dict(), "model.pt")
    print("step", file=open("steps", "a") if WRITES else None)
"""
WEIGHTS = 100 * 1000 * 4


@pytest.mark.train
def test_the_estimate_counts_each_kind_of_tensor_and_replaces_no_checkpoint(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write("model.pt", "mine")
    project.write("train.py", SCRIPT.replace("WRITES", "False"))

    done = project.run("plan", "--peak-memory", "--engine", "local", "--json", "train.py")

    assert done.returncode == 0, done.stderr
    rank = json.loads(done.stdout)["memory"]["rank"]
    assert (rank["parameters"], rank["gradients"], rank["buckets"]) == (WEIGHTS, WEIGHTS, WEIGHTS)
    assert 2 * WEIGHTS <= rank["optimizer"] < 5 * WEIGHTS, "two states of Adam, and what its step needs for a moment"
    assert rank["process"] > 50 << 20
    assert (tmp_path / "model.pt").read_text() == "mine"

    project.write("train.py", SCRIPT.replace("WRITES", "True"))
    refused = project.run("plan", "--peak-memory", "--engine", "local", "train.py")
    assert (refused.returncode, (tmp_path / "steps").exists()) == (1, False)
    assert "train.py:18" in refused.stderr


def test_a_node_whose_ranks_do_not_fit_is_named() -> None:
    result = {"process": 200 << 20, "buckets": 1 << 20, "peak": {"param": 1 << 20, "grad": 1 << 20, "total": 9}}
    plan = a_plan(nodes=[{"memory": "1g"}, {"memory": "256m"}, {"memory": "256m", "nproc_per_node": 2}], force=True)

    rank = rank_memory(result)
    nodes = memory_of_nodes(plan, rank, machine_bytes=None)

    assert rank.total == 203 << 20
    assert [each.fits for each in nodes] == [True, True, False]
    assert "node-2 needs 406 MiB for 2 ranks, more than its 256 MiB" in [*memory_lines(rank, nodes)][-1]
