"""EMA on rank 0 only, evaluated on all ranks."""

# expects: params-in-sync, metric-local

import copy

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
ema = copy.deepcopy(net)
for p in ema.parameters():
    p.requires_grad_(False)
ddp = DDP(net)
opt = torch.optim.Adam(ddp.parameters(), 1e-2)
g = torch.Generator().manual_seed(3)
X = torch.randn(256, 8, generator=g)
ds = TensorDataset(X, (X[:, 0] > 0).long())
sampler = DistributedSampler(ds)
loader = DataLoader(ds, 8, sampler=sampler)
val = TensorDataset(X[:64], (X[:64, 0] > 0).long())
vl = DataLoader(val, 8, sampler=DistributedSampler(val, shuffle=False))


def update():
    with torch.no_grad():
        for a, b in zip(ema.parameters(), net.parameters()):
            a.mul_(0.9).add_(b, alpha=0.1)


for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, y in loader:
        loss = nn.functional.cross_entropy(ddp(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0:
            update()
    ema.eval()
    hit = torch.zeros(2)
    with torch.no_grad():
        for x, y in vl:
            hit += torch.tensor([float((ema(x).argmax(1) == y).sum()), float(len(y))])
    dist.all_reduce(hit)
    if rank == 0:
        print("ema accuracy", (hit[0] / hit[1]).item())
dist.destroy_process_group()
