"""Train a model with FEATURES features for STEPS steps, and print the seconds that rank 0 took."""

import json
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

features, steps = map(int, sys.argv[1:])
dist.init_process_group("gloo")
torch.manual_seed(0)
layers = (torch.nn.Linear(features, features), torch.nn.ReLU(), torch.nn.Linear(features, 1))
model = DistributedDataParallel(torch.nn.Sequential(*layers))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
begun = time.monotonic(), time.process_time()
for _ in range(steps):
    optimizer.zero_grad()
    loss = model(torch.randn(32, features)).square().mean()
    loss.backward()
    optimizer.step()
seconds = {"wall": time.monotonic() - begun[0], "cpu": time.process_time() - begun[1]}
if dist.get_rank() == 0:
    print("seconds", json.dumps(seconds))
dist.destroy_process_group()
