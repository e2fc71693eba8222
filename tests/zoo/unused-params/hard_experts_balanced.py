"""A switch layer with every expert on every rank, and a balancing loss over the tokens of all ranks."""

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Switch(nn.Module):
    def __init__(self, width=8, experts=4):
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 16), nn.ReLU(), nn.Linear(16, width)) for _ in range(experts)
        )

    def forward(self, x):
        gate = self.router(x).softmax(-1)
        weight, chosen = gate.max(-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            hit = chosen == i
            out[hit] = expert(x[hit]) * weight[hit].unsqueeze(1)
        counts = torch.bincount(chosen, minlength=len(self.experts)).float()
        dist.all_reduce(counts)
        fraction = counts / counts.sum()
        return x + out, len(self.experts) * (fraction * gate.mean(0)).sum()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = Switch(), nn.Linear(8, 3)

    def forward(self, x):
        h, balance = self.layer(x)
        return self.head(h), balance


dist.init_process_group("gloo")
torch.manual_seed(2)
model = DistributedDataParallel(Net(), find_unused_parameters=True)
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
data = TensorDataset(torch.randn(128, 8), torch.randint(0, 3, (128,)))
sampler = DistributedSampler(data)
for epoch in range(1):
    sampler.set_epoch(epoch)
    for x, y in DataLoader(data, 4, sampler=sampler):
        logits, balance = model(x)
        loss = nn.functional.cross_entropy(logits, y) + 0.01 * balance
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
dist.destroy_process_group()
