"""A process with two emulated devices, which evaluates expressions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.builders import PATIENCE_S, ROOT

# Evaluates one expression per line in a process with two emulated devices.
SERVER = """
import json, sys, warnings
warnings.simplefilter("ignore")
from compose_sim.node.rank import emulate
emulate.install()
import copy, io, pickle, torch, torch.nn as nn, torch.nn.functional as F, torch.utils.cpp_extension
from torch.utils.checkpoint import checkpoint
def saved(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file
x, y, c = torch.zeros(2, 3, device="cuda"), torch.ones(2, 3, device="cuda:1"), torch.ones(2, 3)
def optimizer_state():
    model = nn.Linear(3, 1).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    model(x).sum().backward()
    optimizer.step()
    return {name: str(value.device) for name, value in optimizer.state_dict()["state"][0].items()}
def draws(seed):
    torch.manual_seed(0)
    if seed is not None:
        torch.cuda.manual_seed(seed)
    return torch.rand(2, device="cuda").tolist()
def in_autocast(call):
    with torch.autocast("cuda", dtype=torch.float16):
        return call()
def conv_gradients(scale):
    x = torch.ones(1, 1, 3, 3, device="cuda", dtype=torch.float16)
    weight = torch.ones(1, 1, 1, 1, device="cuda", dtype=torch.float16, requires_grad=True)
    F.conv2d(x, weight).backward(torch.full_like(x, scale))
    return [weight.grad.item(), weight.grad.dtype]
def hooked(move):
    layer, calls = nn.Linear(3, 1, bias=False).cuda(), []
    node = layer.weight.expand_as(layer.weight).grad_fn.next_functions[0][0]
    node.register_hook(lambda *_: calls.append(1))
    move(layer)(x).sum().backward()
    return len(calls)
for line in sys.stdin:
    try:
        answer = str(eval(line))
    except Exception as error:
        answer = f"{type(error).__name__}: {error}"
    print(json.dumps(answer), flush=True)
"""


class Emulation:
    """A process that evaluates expressions with emulated devices."""

    def __init__(self) -> None:
        environment = {**os.environ, "COMPOSESIM_EMULATED_GPUS": "2", "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def __call__(self, expression: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(expression + "\n")
        self._process.stdin.flush()
        answer: str = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        self._process.communicate(timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def emulated() -> Iterator[Emulation]:
    emulation = Emulation()
    yield emulation
    emulation.close()
