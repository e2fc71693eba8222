"""A rank skips a batch that it finds unsuitable, and so misses the all-reduce."""

# expects: collective-mismatch
# also: hang

import torch
import torch.distributed as dist
import torch.nn as nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
net = nn.Linear(8, 2)
opt = torch.optim.SGD(net.parameters(), 0.1)
g = torch.Generator().manual_seed(rank)
for step in range(12):
    x = torch.randn(8, 8, generator=g)
    y = (x[:, 0] > 0).long()
    if rank == 2 and step == 5:
        x[0] = float("nan")
    loss = nn.functional.cross_entropy(net(x), y)
    if not torch.isfinite(loss):
        print("skipping a bad batch")
        continue
    opt.zero_grad()
    loss.backward()
    for p in net.parameters():
        dist.all_reduce(p.grad)
        p.grad /= world
    opt.step()
dist.destroy_process_group()
