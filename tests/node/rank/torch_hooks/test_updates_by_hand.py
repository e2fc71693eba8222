"""An update without an optimizer of torch is a step: it begins at the first change of a parameter, with the gradients still there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from compose_sim.node.records.models import OptimizerStep, TensorHashes
from tests.node.harness import Cluster

pytestmark = pytest.mark.train

SCRIPT = """
import torch, torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
params = list(model.parameters())
flat = torch.zeros(sum(each.numel() for each in params))

def subtract():
    with torch.no_grad():
        for each in params:
            each -= 0.1 * each.grad

def subtract_from_data():
    for each in params:
        each.data.add_(each.grad, alpha=-0.1)

def subtract_at_once():
    with torch.no_grad():
        torch._foreach_add_(params, [each.grad for each in params], alpha=-0.1)

def subtract_into():
    for each in params:
        torch.sub(each.data, each.grad, out=each.data)

def replace():
    vector = parameters_to_vector(params).detach() - 0.1 * parameters_to_vector([each.grad for each in params])
    vector_to_parameters(vector, params)

def gather():
    mine = parameters_to_vector(params).detach() - 0.1 * parameters_to_vector([each.grad for each in params])
    global flat
    if params[0].untyped_storage().data_ptr() != flat.untyped_storage().data_ptr():
        vector_to_parameters(flat, params)
    dist.all_gather_into_tensor(flat, mine)

def optimizer():
    global update
    made = torch.optim.SGD(params, lr=0.1)
    update = made.step
    update()

update = UPDATE
for _ in range(3):
    for each in params:
        each.grad = None
    for _ in range(2):  # gradients are accumulated
        model(torch.ones(2, 4)).sum().backward()
        params[0].grad /= 1
    update()
"""


@pytest.mark.parametrize(
    "update", ["subtract", "subtract_from_data", "subtract_at_once", "subtract_into", "replace", "gather", "optimizer"]
)
def test_each_update_is_a_step(cluster: Callable[..., Cluster], update: str) -> None:
    run = cluster(SCRIPT.replace("UPDATE", update))
    run.environment |= {"COMPOSESIM_CHECK": "record"}

    run.start(1)

    assert set(run.exit_codes().values()) == {0}, run.log(0)
    records = run.observed(0).records
    steps = [each for each in records if isinstance(each, OptimizerStep)]
    assert [(each.nth, each.backwards) for each in steps] == [(1, 0), (2, 2), (3, 2)], steps
    assert {each.type for each in steps} == {"SGD" if update == "optimizer" else "UpdateByHand"}
    hashes = [each.hashes for each in records if isinstance(each, TensorHashes)]
    assert len({*hashes}) == 4, hashes
