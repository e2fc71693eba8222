"""The cost of observing a step, counted in writes and records of an ordinary run. `python -m bench` measures the time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from compose_sim.node.records.models import OptimizerStep, TensorHashes, TensorTable
from tests.node.harness import Cluster

pytestmark = pytest.mark.train

STEPS = 1500
SCRIPT = f"""
import os, sys
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
inputs = torch.ones(2, 4)
writes = [0]

write = os.write
def counted(file, data):
    writes[0] += b'"kind":' in data
    return write(file, data)

os.write = counted
for _ in range({STEPS}):
    optimizer.zero_grad()
    model(inputs).sum().backward()
    optimizer.step()
os.write = write
print("WRITES", writes[0], flush=True)
"""


def test_an_ordinary_run_writes_about_once_a_step_and_looks_closely_seldom(cluster: Callable[..., Cluster]) -> None:
    run = cluster(SCRIPT).start(1)
    assert run.exit_codes()["node-0"] == 0, run.log(0)
    (line,) = (line for line in run.log(0).splitlines() if line.startswith("WRITES"))
    assert STEPS / 2 < int(line.split()[1]) <= STEPS + 50
    kinds = Counter(type(each) for each in run.observed().records)
    assert kinds[TensorHashes] == 13  # after 0, 1, 2, 4, … 1024 steps, and at the end
    assert kinds[TensorTable] == 1
    assert kinds[OptimizerStep] == 1000 + 5 + 1
