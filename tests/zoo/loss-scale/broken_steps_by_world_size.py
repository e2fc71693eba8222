"""The number of micro-steps is divided by the world size; the loss is still divided by the old number."""

# expects: loss-scale

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

BATCH, MICRO = 64, 4
accum = BATCH // MICRO
dist.init_process_group("gloo")
world = dist.get_world_size()
steps = accum // world
torch.manual_seed(0)
net = DDP(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2)))
opt = torch.optim.SGD(net.parameters(), 0.1)
g = torch.Generator().manual_seed(0)
X = torch.randn(512, 8, generator=g)
ds = TensorDataset(X, (X[:, 0] > 0).long())
s = DistributedSampler(ds, shuffle=True)
dl = DataLoader(ds, MICRO, sampler=s)
for ep in range(2):
    s.set_epoch(ep)
    for n, (x, y) in enumerate(dl):
        net.require_backward_grad_sync = (n + 1) % steps == 0
        (nn.functional.cross_entropy(net(x), y) / accum).backward()
        if (n + 1) % steps == 0:
            opt.step()
            opt.zero_grad()
dist.destroy_process_group()
