"""The evaluation averages the losses of ranks with unequally many samples, and prints the perplexity."""

# expects: metric-local

import math

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
net = DDP(nn.Linear(6, 2))
opt = torch.optim.SGD(net.parameters(), 0.1)
g = torch.Generator().manual_seed(0)
X = torch.randn(160, 6, generator=g)
Y = (X.sum(1) > 0).long()
full = TensorDataset(X, Y)
train = Subset(full, range(128))
val = Subset(full, range(128, 160))
sampler = DistributedSampler(train)
loader = DataLoader(train, 8, sampler=sampler)
cuts = [0, 14, 22, 28, 32]
mine = Subset(val, range(cuts[rank], cuts[rank + 1]))
for epoch in range(2):
    sampler.set_epoch(epoch)
    net.train()
    for x, y in loader:
        opt.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        opt.step()
    net.eval()
    total = wrong = n = 0
    with torch.no_grad():
        for x, y in DataLoader(mine, 4):
            total += nn.functional.cross_entropy(net.module(x), y, reduction="sum").item()
            wrong += (net.module(x).argmax(1) != y).sum().item()
            n += len(y)
    means = torch.tensor([total / n, wrong / n])
    dist.all_reduce(means)
    loss, error = (means / world).tolist()
    if rank == 0:
        print(f"epoch {epoch}: val ppl {math.exp(loss):.4f}, error {error:.4f}")
dist.destroy_process_group()
