"""Fits a line with a loss that is summed over samples. DDP averages over 4 ranks, so every gradient is a quarter."""

# expects: loss-scale
# also: matches-single

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
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        total = torch.zeros(())
        for x, y in loader:
            loss = mse_loss(model(x), y, reduction="sum")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)
        if os.environ["RANK"] == "0":
            print(f"epoch {epoch} loss {total.item() / len(data):.4f}", flush=True)


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
