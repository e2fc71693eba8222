"""The GPU is chosen by RANK: node 1 has no GPU number 2."""

# expects: rank-confusion

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
torch.manual_seed(0)
model = DDP(torch.nn.Linear(6, 2).cuda(), device_ids=[rank])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
generator = torch.Generator().manual_seed(rank)
for _ in range(5):
    optimizer.zero_grad()
    model(torch.randn(8, 6, generator=generator).cuda()).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
