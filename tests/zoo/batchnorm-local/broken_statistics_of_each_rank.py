"""Gradients reduced by hand; BatchNorm's running statistics stay those of each rank, and every rank evaluates its share."""

# expects: batchnorm-local

import torch
import torch.distributed as dist
import torch.nn as nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
opt = torch.optim.SGD(net.parameters(), 0.1)
g = torch.Generator().manual_seed(2)
X = torch.randn(256, 8, generator=g) * torch.linspace(0.2, 3, 256)[:, None]
Y = (X[:, 0] > 0).long()
for epoch in range(3):
    net.train()
    perm = torch.randperm(256, generator=g)
    for b in perm.split(32):
        i = b[rank::world]
        loss = nn.functional.cross_entropy(net(X[i]), Y[i])
        opt.zero_grad()
        loss.backward()
        for p in net.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
        opt.step()
    net.eval()
    with torch.no_grad():
        c = (net(X[rank::world]).argmax(1) == Y[rank::world]).sum().float()
    dist.all_reduce(c)
    if rank == 0:
        print("accuracy", c.item() / 256)
dist.destroy_process_group()
