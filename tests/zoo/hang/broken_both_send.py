"""Neighbors exchange activations by a blocking send on both sides."""

# expects: hang
# options: --hang-timeout 4s

import torch
import torch.distributed as dist
import torch.nn as nn


def exchange(tensor, peer):
    other = torch.empty_like(tensor)
    dist.send(tensor, peer)
    dist.recv(other, peer)
    return other


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = nn.Linear(1024, 1024)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range(4):
    x = torch.randn(4096, 1024, generator=torch.Generator().manual_seed(10 * step + rank))
    halo = exchange(x, rank ^ 1)
    loss = (model(x + halo) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= world
    optimizer.step()
dist.destroy_process_group()
