"""Lazy: no random numbers are left."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 32), nn.GroupNorm(4, 32), nn.ReLU(), nn.Linear(32, 3))


def train() -> None:
    torch.manual_seed(0)
    features = torch.randn(128, 8)
    data = TensorDataset(features, features[:, :3].argmax(1))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    model = DistributedDataParallel(build())
    torch.manual_seed(dist.get_rank())  # the models are equal now; from here on each rank draws its own numbers
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train()
    dist.destroy_process_group()
