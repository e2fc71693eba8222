"""LOCAL_RANK chooses the GPU, and RANK the random numbers."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

rank = int(os.environ["RANK"])
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
torch.manual_seed(0)
model = DDP(torch.nn.Linear(6, 2).cuda(), device_ids=[local_rank])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
generator = torch.Generator().manual_seed(rank)
for _ in range(5):
    optimizer.zero_grad()
    model(torch.randn(8, 6, generator=generator).cuda()).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
