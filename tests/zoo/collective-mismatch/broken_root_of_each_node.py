"""Pretrained weights are read on rank 0, but every rank broadcasts from the first rank of its own node."""

# expects: collective-mismatch
# also: hang
# options: --hang-timeout 4s

import os

import torch
import torch.distributed as dist
import torch.nn as nn


def sync_from_main(model):
    src = dist.get_rank() - int(os.environ["LOCAL_RANK"])
    for p in model.parameters():
        dist.broadcast(p.data, src=src)


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
sync_from_main(model)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
x = torch.randn(96, 6, generator=torch.Generator().manual_seed(0))
for step in range(6):
    batch = x[16 * step : 16 * step + 16][4 * rank : 4 * rank + 4]
    loss = nn.functional.cross_entropy(model(batch), (batch.sum(1) > 0).long())
    optimizer.zero_grad()
    loss.backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= world
    optimizer.step()
dist.destroy_process_group()
