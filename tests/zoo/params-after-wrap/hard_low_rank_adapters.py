"""Adapters trained on a frozen base under DDP; only the adapters are in the optimizer, with a rate of their own per group."""

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class LoRA(nn.Module):
    def __init__(self, base, rank=2):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) * 0.1)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        return self.base(x) + self.dropout(x) @ self.down.T @ self.up.T


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
net = nn.Sequential(LoRA(nn.Linear(10, 16)), nn.ReLU(), LoRA(nn.Linear(16, 3)))
data = TensorDataset(torch.randn(96, 10), torch.randint(0, 3, (96,)))
model = DistributedDataParallel(net)
groups = [
    {"params": [p for n, p in net.named_parameters() if n.endswith("up")], "lr": 5e-2},
    {"params": [p for n, p in net.named_parameters() if n.endswith("down")], "lr": 1e-2},
]
optimizer = torch.optim.AdamW(groups)
sampler = DistributedSampler(data)
loader = DataLoader(data, 4, sampler=sampler)
torch.manual_seed(77 + rank)
best = float("inf")
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
for epoch in range(2):
    sampler.set_epoch(epoch)
    total = torch.zeros(1)
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()
    dist.all_reduce(total)
    plateau.step(total.item() / dist.get_world_size() / len(loader))
    stop = torch.tensor([float(total.item() > best)])
    dist.broadcast(stop, src=0)
    best = min(best, total.item())
    if rank == 0:
        adapters = {n: p for n, p in net.state_dict().items() if "base" not in n}
        torch.save(adapters, "adapters.pt")
    if stop.item():
        break
dist.destroy_process_group()
