"""Train a classifier with LayerNorm, and a dropout that draws from a generator of this rank."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Dropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(dist.get_rank())

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * (torch.rand(inputs.shape, generator=self.generator) >= 0.2) / 0.8


def train() -> None:
    torch.manual_seed(0)
    features = torch.randn(128, 8)
    data = TensorDataset(features, features[:, :3].argmax(1))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    network = nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.ReLU(), Dropout(), nn.Linear(32, 3))
    model = DistributedDataParallel(network)
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
