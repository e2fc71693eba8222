"""Fits a line with the mean over each rank's samples; the mean of these over ranks is the mean over all samples."""

import os

import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def train() -> None:
    torch.manual_seed(3)
    inputs = torch.randn(256, 6)
    targets = inputs @ torch.tensor([[1.0], [-2.0], [0.5], [3.0], [0.0], [1.5]]) + 0.1 * torch.randn(256, 1)
    data = TensorDataset(inputs, targets)
    sampler = DistributedSampler(data, seed=11)
    loader = DataLoader(data, batch_size=16, sampler=sampler)

    model = DistributedDataParallel(torch.nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=2e-2)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        total = torch.zeros(())
        for x, y in loader:
            loss = mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach() / len(loader)
        dist.all_reduce(total)
        if os.environ["RANK"] == "0":
            print(f"epoch {epoch} loss {total.item() / dist.get_world_size():.4f}", flush=True)


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
