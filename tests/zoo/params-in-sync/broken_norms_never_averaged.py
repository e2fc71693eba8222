"""Ranks train by themselves and average their linear layers each round, but not the norms between them."""

# expects: params-in-sync

import torch
import torch.distributed as dist
import torch.nn as nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(3)
net = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 1))
data = torch.randn(256, 8, generator=torch.Generator().manual_seed(rank))
averaged = [p for m in net if isinstance(m, nn.Linear) for p in m.parameters()]
for each_round in range(4):
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    for step in range(4):
        x = data[16 * (4 * each_round + step) :][:16]
        opt.zero_grad()
        (net(x) - x.sum(1, keepdim=True)).square().mean().backward()
        opt.step()
    with torch.no_grad():
        flat = torch.cat([p.flatten() for p in averaged]) / world
        dist.all_reduce(flat)
        for p, part in zip(averaged, flat.split([p.numel() for p in averaged])):
            p.copy_(part.view_as(p))
dist.destroy_process_group()
