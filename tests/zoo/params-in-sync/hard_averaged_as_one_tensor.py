"""Local SGD: weights and running statistics are averaged as one tensor every few steps; each rank keeps its momentum."""

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(5)
model = nn.Sequential(nn.Linear(14, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
generator = torch.Generator().manual_seed(100 + rank)


@torch.no_grad()
def average():
    tensors = [*model.parameters(), *(each for each in model.buffers() if each.is_floating_point())]
    flat = torch.cat([each.reshape(-1) for each in tensors])
    dist.all_reduce(flat)
    flat /= world
    for each, mean in zip(tensors, flat.split([each.numel() for each in tensors]), strict=True):
        each.copy_(mean.view_as(each))


for step in range(1, 25):
    x = torch.randn(16, 14, generator=generator)
    loss = nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 6 == 0:
        average()
dist.destroy_process_group()
