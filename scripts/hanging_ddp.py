"""Hang in step 26, after rank 1 was slow: the run in the first picture of the page."""

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(32, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(40):
    if rank == 1:
        time.sleep(0.15)
    optimizer.zero_grad()
    loss = model(torch.randn(16, 32)).pow(2).mean()
    loss.backward()
    optimizer.step()
    if rank == 2 and step == 25:
        time.sleep(600)
    total = loss.detach().clone()
    dist.all_reduce(total)
    if rank == 0:
        print(f"step {step} loss {total.item() / dist.get_world_size():.4f}", flush=True)
dist.destroy_process_group()
