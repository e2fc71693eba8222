"""Gradients reduced by hand are clipped by a norm whose squares are summed over ranks, although each has all of it."""

# expects: loss-scale
# also: matches-single

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(12, 48), nn.GELU(), nn.Linear(48, 5))
opt = torch.optim.SGD(model.parameters(), lr=1e-2)
g = torch.Generator().manual_seed(7)
ds = TensorDataset(torch.randn(320, 12, generator=g), torch.randint(0, 5, (320,), generator=g))
sampler = DistributedSampler(ds, shuffle=True)
dl = DataLoader(ds, batch_size=8, sampler=sampler)
for ep in range(1):
    sampler.set_epoch(ep)
    for x, y in dl:
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        square = sum(p.grad.pow(2).sum() for p in model.parameters())
        dist.all_reduce(square)
        coefficient = (0.2 / (square.sqrt() + 1e-6)).clamp(max=1.0)
        for p in model.parameters():
            p.grad.mul_(coefficient)
        opt.step()
        opt.zero_grad()
dist.destroy_process_group()
