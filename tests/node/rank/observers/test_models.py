"""Observe models, gradients and optimizer steps; training ends with the same bits as without observers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from compose_sim.node.rank.context import RankContext
from compose_sim.node.rank.observers.models import sampled
from compose_sim.node.records.data import TrainingForward
from compose_sim.node.records.models import DdpModel, OptimizerStep, PlainTensors, TensorHashes, TensorTable
from compose_sim.node.records.process_groups import DdpForward
from compose_sim.node.records.script import ScriptEnd
from tests.node.harness import Cluster

pytestmark = pytest.mark.train

TRAINING = """
import os, sys, hashlib, random
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

def digest(tensors):
    values = (bytes(each.detach().contiguous().view(-1).view(torch.uint8).tolist()) for each in tensors)
    return hashlib.sha256(b"".join(values)).hexdigest()

def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(64, 6), torch.randn(64, 1))
    network = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))
    model = DistributedDataParallel(network)
    torch.manual_seed(rank)
    random.seed(rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    sampler = DistributedSampler(data)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for inputs, targets in DataLoader(data, batch_size=8, sampler=sampler, num_workers=epoch % 2):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs + 0.1 * torch.randn_like(inputs) + random.random()), targets).backward()
            optimizer.step()
    file = os.path.join(os.environ["OUT"], f"model.{rank}.pt")
    torch.save(model.module, file)  # whole: nothing of ours may be in it
    states = [value for state in optimizer.state.values() for value in state.values()]
    loaded = torch.load(file, weights_only=False)
    print("WEIGHTS", digest([*loaded.state_dict().values(), *states, torch.get_rng_state()]), random.random())
    assert b"compose_sim" not in open(file, "rb").read()
    dist.barrier()
    dist.destroy_process_group()

main()
"""


def weights(cluster: Cluster) -> list[str]:
    assert set(cluster.exit_codes().values()) == {0}, [cluster.log(rank) for rank in range(2)]
    return [next(line for line in cluster.log(rank).splitlines() if line.startswith("WEIGHTS")) for rank in range(2)]


def test_weights_optimizer_state_and_random_numbers_are_those_without_observers(
    cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    results = {}
    for mode in ("none", "", "record"):
        run = cluster(TRAINING, nproc=2)
        run.environment |= {"COMPOSESIM_CHECK": mode, "OUT": str(tmp_path)}
        if mode == "none":
            nothing = run.folder / "node" / "rank" / "observers" / "__init__.py"
            nothing.write_text("OBSERVERS = ()\n")
        results[mode] = weights(run.start(1))
        kinds = [{type(each) for each in run.observed(rank).records} for rank in range(2)]
        assert all(({DdpModel, OptimizerStep, TensorHashes} <= each) is (mode != "none") for each in kinds)
    assert results[""] == results["none"]
    assert results["record"] == results["none"]


COMPILED = """
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
graphs = []

def backend(graph, inputs):
    graphs.append(graph)
    return graph.forward

def network():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))

def train(model, call):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        call(torch.ones(2, 4)).sum().backward()
        optimizer.step()

outside = DistributedDataParallel(network())
train(outside, torch.compile(outside, backend=backend))
inside = DistributedDataParallel(torch.compile(network(), backend=backend, fullgraph=True))
train(inside, inside)
whole = DistributedDataParallel(network())
optimizer = torch.optim.SGD(whole.parameters(), lr=0.1)

@torch.compile(backend=backend)
def step(inputs):
    optimizer.zero_grad()
    whole(inputs).sum().backward()
    optimizer.step()

for _ in range(3):
    step(torch.ones(2, 4))
print("GRAPHS", len(graphs) <= 12)
"""


def test_compiled_models_are_compiled_as_without_us_and_every_call_is_seen(cluster: Callable[..., Cluster]) -> None:
    run = cluster(COMPILED).start(1)
    assert run.exit_codes()["node-0"] == 0, run.log(0)
    seen = run.observed()
    assert [each.ddp for each in seen.of(DdpForward)] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    steps = [(each.optimizer, each.nth) for each in seen.of(OptimizerStep)]
    assert steps == [(which, nth) for which in range(3) for nth in (1, 2, 3)]
    names = {row.name for each in seen.of(TensorTable) for row in each.rows}
    assert names == {"0.weight", "0.bias", "2.weight", "2.bias"}


ODD = """
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
other = torch.optim.LBFGS(model.parameters(), lr=0.1)

def closure():
    other.zero_grad()
    loss = model(torch.ones(2, 4)).square().sum()
    loss.backward()
    return loss

other.step(closure)
try:
    optimizer.step(lambda: 1 / 0)
except ZeroDivisionError:
    pass
closure()
other.step(closure)  # the step that raised an error has ended, though it never said so

class Pair(torch.optim.Optimizer):
    def __init__(self, inner):
        super().__init__(inner.param_groups[0]["params"], {})
        self.inner = inner

    def step(self, closure=None):
        self.inner.step()

Pair(optimizer).step()
half = nn.Parameter(torch.randn(4, 6, dtype=torch.bfloat16).t())
turned = torch.optim.SGD([half, nn.Parameter(torch.randn(3, dtype=torch.complex64)), nn.Parameter(torch.empty(0))], lr=0.1)
half.grad = torch.ones_like(half)
turned.step()
turned.step()
"""


def test_odd_optimizers_are_survived_and_parts_of_a_step_count_once(cluster: Callable[..., Cluster]) -> None:
    run = cluster(ODD).start(1)
    assert run.exit_codes()["node-0"] == 0, run.log(0)
    seen = run.observed()
    assert [each.type for each in seen.of(OptimizerStep)] == ["LBFGS", "LBFGS", "Pair", "SGD", "SGD"]
    assert [each.steps for each in seen.of(ScriptEnd)] == [5]


def test_check_looks_at_fifty_steps_and_then_at_sixteen_of_each_doubling(rank: RankContext) -> None:
    rank.mode = "record"
    counts = [sum(sampled(rank, count) for count in range(first, 2 * first)) for first in (64, 1024, 65536)]

    assert (sum(sampled(rank, count) for count in range(1, 51)), counts) == (50, [16, 16, 16])


KEEPS = """import io

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
class Layer(nn.Linear):
    def forward(self, given):
        return super().forward(given) + self.kept[0] + self.number

module = nn.Sequential(Layer(4, 4), nn.Dropout(0.5))
module[0].kept = torch.full((3,), float(dist.get_rank()))
module[0].number = torch.tensor(2.0)
module[0].example = torch.rand(2, 4)
module[0].sparse = torch.eye(3).to_sparse()
model = DistributedDataParallel(module)
saved, weights = io.BytesIO(), io.BytesIO()
torch.save({"random": [torch.get_rng_state()]}, saved)
torch.save(model.state_dict(), weights)
for step in range(60):
    model(torch.rand(2, 4)).sum().backward()
    if step in (29, 39):
        torch.load(io.BytesIO((weights if step == 29 else saved).getvalue()))
dist.destroy_process_group()
"""


def test_plain_tensors_and_passes_after_a_load_are_recorded(cluster: Callable[..., Cluster]) -> None:
    run = cluster(KEEPS, nproc=2)
    run.environment["COMPOSESIM_CHECK"] = "record"
    run.start(1)
    assert set(run.exit_codes().values()) == {0}, run.log(0)

    kept = [[*run.observed(rank).of(PlainTensors)] for rank in range(2)]
    passes = [(each.forward, each.loads) for each in run.observed().of(TrainingForward)]

    assert [each.names for each in kept[0]] == [("0.kept (3)",)] * 2
    assert len({each.hashes for each in kept[0]}) == 1
    assert kept[0][0].hashes != kept[1][0].hashes
    assert passes == [(number, 0) for number in range(24)] + [(number, 1) for number in range(40, 60)]
