"""Decentralized SGD (D-PSGD): each rank steps with its own gradient, and mixes its weights with those of its neighbours on a ring."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
x = torch.randn(192, 8, generator=torch.Generator().manual_seed(1))
data = TensorDataset(x, x[:, :2].sum(1, keepdim=True))
model = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.05)


@torch.no_grad()
def mix() -> None:
    left, right = (rank - 1) % world, (rank + 1) % world
    flat = nn.utils.parameters_to_vector(model.parameters())
    a, b = torch.empty_like(flat), torch.empty_like(flat)
    ops = [
        dist.P2POp(dist.isend, flat, left, tag=0),
        dist.P2POp(dist.isend, flat, right, tag=1),
        dist.P2POp(dist.irecv, a, right, tag=0),
        dist.P2POp(dist.irecv, b, left, tag=1),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    nn.utils.vector_to_parameters((flat + a + b) / 3, model.parameters())


sampler = DistributedSampler(data)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for a, b in DataLoader(data, batch_size=8, sampler=sampler):
        opt.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        opt.step()
        if world > 1:
            mix()
with torch.no_grad():
    for each in model.parameters():
        dist.all_reduce(each)
        each /= world
dist.destroy_process_group()
