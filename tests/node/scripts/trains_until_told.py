"""Train until rank 0 finds a file, and broadcasts that the run is over."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
enough = torch.zeros(1)
while not enough.item():
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    enough.fill_(Path(os.environ["COMPOSESIM_SHARED"], "enough").exists())
    dist.broadcast(enough, 0)
dist.destroy_process_group()
