"""Dropout with one seed per rank in a compiled model: ranks must draw different numbers, and a single rank others again."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    rank = int(os.environ["RANK"])
    torch.manual_seed(0)
    x = torch.randn(256, 12)
    data = TensorDataset(x, (x @ torch.randn(12, 3)).argmax(1))
    net = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 3))
    model = nn.parallel.DistributedDataParallel(torch.compile(net, backend="eager"))
    torch.manual_seed(100 + rank)
    sampler = DistributedSampler(data, seed=0)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
