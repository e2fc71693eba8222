"""Observe which random numbers and states of a hand-written optimizer come from a checkpoint, and change no result."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from compose_sim.node.records.data import GeneratorDraw
from compose_sim.node.records.models import KeptTensors
from compose_sim.node.records.script import FeatureOff
from tests.node.harness import Cluster

pytestmark = pytest.mark.train

SCRIPT = """
import io, torch

class Odd(dict):
    def items(self): raise RuntimeError("not to be read")

class Momentum:
    def __init__(self, model):
        self.model, self.odd = model, Odd(x=torch.rand(9))
        self.held = {each: {"m": torch.zeros(each.numel())} for each in model.parameters()}
        self.freed = torch.rand(64)
        self.freed.untyped_storage().resize_(0)

    @torch.no_grad()
    def step(self):
        for each, state in self.held.items():
            state["m"].mul_(0.9).add_(each.grad.flatten())
            each.sub_(0.1 * state["m"].view_as(each))

torch.manual_seed(3)
model = torch.nn.Linear(4, 3)
own, optimizer = torch.Generator().manual_seed(5), Momentum(model)
def train(steps):
    for _ in range(steps):
        x = torch.randn(8, 4, generator=own)
        model.zero_grad()
        (model(x) - x[:, :3]).square().mean().backward()
        optimizer.step()

train(4)
saved = io.BytesIO()
torch.save({"m": [each["m"] for each in optimizer.held.values()], "own": own.get_state()}, saved)
train(2)
loaded = torch.load(io.BytesIO(saved.getvalue()))
own.set_state(loaded["own"])
for state, given in zip(optimizer.held.values(), loaded["m"]):
    state["m"].copy_(given)
train(3)
print("weights", model.weight.flatten().tolist(), torch.rand(1).item())
"""


def weights(text: str) -> str:
    return next(line.partition("weights")[2] for line in text.splitlines() if "weights" in line)


def test_what_comes_from_a_checkpoint_is_recorded(cluster: Callable[..., Cluster]) -> None:
    made = cluster(SCRIPT)
    made.environment["COMPOSESIM_CHECK"] = "record"
    made.environment["COMPOSESIM_RECORD"] = str(made.folder / "record")
    made.start(1)
    assert set(made.exit_codes().values()) == {0}
    seen = made.observed()

    *draws, last = seen.of(GeneratorDraw)  # an update by hand ends when the model is called again
    assert [(each.steps, each.loaded is not None) for each in draws] == [(step, step > 4) for step in range(1, 8)]
    assert draws[4].state == draws[2].state
    assert last.loaded is None  # from another generator

    kept = list(seen.of(KeptTensors))
    assert [each.steps for each in kept if each.loaded is None] == [1, 2, 4, 8]
    assert [each.names for each in kept if each.loaded] == [("held.0.m",)]
    assert {each.names for each in kept} == {("held.0.m",)}  # the bias is too small
    assert kept[0].parameters == (12, 3)
    assert not list(seen.of(FeatureOff))

    plain = subprocess.run([sys.executable, *made.program], capture_output=True, text=True, check=True)
    assert weights(made.log(0)) == weights(plain.stdout)
