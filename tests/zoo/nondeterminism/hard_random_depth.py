"""Dropout, a random depth, a schedule that counts calls, and a moving codebook: all of it is state that a repetition restores."""

import random

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.dropout = nn.Linear(8, 16), nn.Linear(16, 2), nn.Dropout(0.2)
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.register_buffer("center", torch.zeros(16))
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        hidden = self.dropout(self.first(x).relu()) * min(1.0, self.calls / 20) - self.center
        self.center.mul_(0.9).add_(hidden.detach().mean(0), alpha=0.1)
        for block in self.blocks:
            scale = float(random.random() < 0.5)
            hidden = hidden + scale * block(hidden)
        return self.last(hidden)


dist.init_process_group("gloo")
torch.manual_seed(0)
inputs = torch.randn(128, 8)
data = TensorDataset(inputs, (inputs[:, 0] > 0).long())
sampler = DistributedSampler(data, seed=1)
loader = DataLoader(data, batch_size=8, sampler=sampler)
model = DistributedDataParallel(Net())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
torch.manual_seed(dist.get_rank())
random.seed(dist.get_rank())
for epoch in range(3):
    sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
dist.destroy_process_group()
