"""Lazy: one backward pass per step."""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

ACCUMULATE = 1


def train() -> None:
    torch.manual_seed(0)
    points = torch.rand(96, 4)
    data = TensorDataset(points, points.sum(1, keepdim=True))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for number, (inputs, targets) in enumerate(loader, start=1):
            is_last = number % ACCUMULATE == 0
            loss = nn.functional.mse_loss(model(inputs), targets) / ACCUMULATE
            with nullcontext() if is_last else model.no_sync():
                loss.backward()
            if is_last:
                optimizer.step()
                optimizer.zero_grad()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train()
    dist.destroy_process_group()
