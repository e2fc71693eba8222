"""Print as JSON what a script sees of the cluster, and take one training step."""

import gc
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
said = json.dumps(
    {
        "argv": sys.argv,
        "name": __name__,
        "file": __file__,
        "path": sys.path[0],
        "cwd": str(Path.cwd()),
        "seed": torch.initial_seed(),
        "environment": {name: value for name, value in os.environ.items() if not name.startswith("COMPOSESIM_")},
    }
)
sys.stdout.write(said + "\n")  # in one write: ranks of bare torchrun share their output, and interleave lines
del model, optimizer  # bare torchrun has no guard against a model that outlives its process group
gc.collect()
dist.destroy_process_group()
