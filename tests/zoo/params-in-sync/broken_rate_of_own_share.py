"""The learning rate is derived from the size of each rank's own shard, which differs."""

# expects: params-in-sync

import torch
import torch.distributed as dist
import torch.nn as nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 1))
x = torch.randn(70, 5, generator=torch.Generator().manual_seed(9))
shard = x[rank::world]
optimizer = torch.optim.SGD(model.parameters(), lr=0.001 * len(shard))
for step in range(6):
    batch = shard[(2 * step) % 16 : (2 * step) % 16 + 2]
    loss = ((model(batch) - batch.sum(1, keepdim=True)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad.div_(world)
    optimizer.step()
dist.destroy_process_group()
