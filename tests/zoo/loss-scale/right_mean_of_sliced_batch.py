"""Each rank takes a slice of the global batch, and the mean over it."""

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DDP(nn.Linear(12, 5))
opt = torch.optim.SGD(model.parameters(), lr=1e-3)
X, Y = torch.randn(320, 12), torch.randn(320, 5)
for step in range(10):
    x, y = X[step * 32 : (step + 1) * 32], Y[step * 32 : (step + 1) * 32]
    x, y = x.chunk(world)[rank], y.chunk(world)[rank]
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    opt.step()
    opt.zero_grad()
dist.destroy_process_group()
