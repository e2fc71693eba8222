"""Divides samples by LOCAL_RANK: ranks of both nodes see the same half of the data, and nobody sees the other half."""

# expects: sampler-overlap
# also: rank-confusion, matches-single

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
local_rank, world_size = int(os.environ["LOCAL_RANK"]), dist.get_world_size()
generator = torch.Generator().manual_seed(11)
features = torch.randn(256, 10, generator=generator)
targets = features @ torch.randn(10, 1, generator=generator)
mine, mine_too = features[local_rank::world_size], targets[local_rank::world_size]

torch.manual_seed(0)
model = DDP(nn.Linear(10, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for _ in range(3):
    for x, y in zip(mine.split(16), mine_too.split(16), strict=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
dist.destroy_process_group()
