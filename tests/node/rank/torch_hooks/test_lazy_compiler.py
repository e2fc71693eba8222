"""A script that does not compile never imports torch's compiler, and one that does sees what it would see without composesim."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.node.harness import Cluster

pytestmark = pytest.mark.train

SCRIPT = """
import hashlib, pickle, sys, warnings
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

warnings.simplefilter("ignore")
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))

def train(model, optimizer, steps=3):
    for _ in range(steps):
        def closure():
            optimizer.zero_grad()
            loss = model(torch.ones(2, 4)).square().sum()
            loss.backward()
            return loss
        optimizer.step(closure)
    return hashlib.sha256(repr([each.tolist() for each in model.parameters()]).encode()).hexdigest()[:12]

def facts():
    ddp = DistributedDataParallel(network())
    yield "reducer", ddp._use_python_reducer
    for name in ("SGD", "Adam", "AdamW", "Adagrad", "Adadelta", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "LBFGS"):
        model = network()
        optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.01)
        weights = train(model, optimizer)
        copy = pickle.loads(pickle.dumps(optimizer))
        yield name, weights, torch.is_grad_enabled(), optimizer.step.__qualname__, len(copy.state_dict()["state"])
    weight = torch.ones(1, requires_grad=True).clone()
    optimizer, seen = torch.optim.SGD([weight], lr=0.1, differentiable=True), []
    weight.grad = torch.ones(1)
    optimizer.step(lambda: seen.append(torch.is_grad_enabled()))
    yield "differentiable", seen, type(weight.grad_fn).__name__
    yield "pickled", pickle.loads(pickle.dumps(torch.optim.SGD.step)) is torch.optim.SGD.step

def compiler_facts():
    yield "same", torch._dynamo is sys.modules["torch._dynamo"], torch._dynamo.config.optimize_ddp
    yield "mode", torch._dynamo.utils.get_optimize_ddp_mode()
    torch._dynamo.config.optimize_ddp = "python_reducer"
    yield "reducer", DistributedDataParallel(network())._use_python_reducer
    torch._dynamo.config.optimize_ddp = True
    graphs = []
    def backend(graph, _):
        graphs.append(len(list(graph.graph.nodes)))
        return graph.forward
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    yield "compiled", train(torch.compile(model, backend=backend), optimizer), len(graphs), graphs
    compiled = torch.compile(lambda: optimizer.step(), backend=backend)
    compiled()
    yield "step", len(graphs), graphs
    torch.compile(lambda: optimizer.zero_grad(), backend=backend)()
    yield "zero_grad", len(graphs)
    kept_out = torch.compiler.disable(lambda x: x + 1)
    torch.compile(lambda x: kept_out(x * 2) * 3, backend=backend)(torch.ones(1))
    yield "disable", len(graphs)
    def plain(function):
        while hasattr(function, "__wrapped__"):
            yield function.__code__.co_filename.rpartition("/")[2], function.__code__.co_name
            function = function.__wrapped__
    yield "code", [each for each in plain(torch.optim.Adam.step) if each[1] != "on_the_cpu"]
    again = torch.optim.SGD(network().parameters(), lr=0.01)
    again.load_state_dict(again.state_dict())
    again.zero_grad()
    functions = {name: getattr(each, "__wrapped__", None) for name, each in vars(torch.optim.Optimizer).items()}
    kept_out = {name: getattr(each, "__dynamo_disable", None) for name, each in functions.items()}
    yield "kept out", [(name, each._torchdynamo_disable) for name, each in kept_out.items() if each]

for fact in facts():
    print("FACT", *fact, flush=True)
print("LOADED", "torch._dynamo" in sys.modules, flush=True)
for fact in compiler_facts():
    print("FACT", *fact, flush=True)
dist.destroy_process_group()
"""


def facts_in(output: str) -> list[str]:
    return [line[line.index("FACT") :] for line in output.splitlines() if "FACT" in line]


def test_a_script_sees_torch_as_without_composesim_and_loads_the_compiler_when_it_compiles(
    cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    run = cluster(SCRIPT, launcher="torchrun").start(1)
    assert run.exit_codes()["node-0"] == 0, run.log(0)
    alone = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, cwd=tmp_path)
    assert alone.returncode == 0, alone.stderr
    assert facts_in(run.log(0)) == facts_in(alone.stdout)
    assert "LOADED True" in alone.stdout
    assert "LOADED False" in run.log(0)


def test_ranks_that_are_forked_share_the_import_of_the_compiler_if_the_script_names_it(
    cluster: Callable[..., Cluster],
) -> None:
    run = cluster("import sys, torch\nprint('LOADED', 'torch._dynamo' in sys.modules, torch.compile)").start(1)
    assert run.exit_codes()["node-0"] == 0, run.log(0)
    assert "LOADED True" in run.log(0)
