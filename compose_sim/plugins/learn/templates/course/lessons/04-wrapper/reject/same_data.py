"""Lazy: parameters stay equal because both ranks do the same work."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Regression(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs)

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.mse_loss(self(inputs), targets)


def train() -> None:
    torch.manual_seed(0)
    points = torch.rand(96, 2)
    data = TensorDataset(points, points.sum(1, keepdim=True))
    sampler = DistributedSampler(data, num_replicas=1, rank=0)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    model = Regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            loss = model.loss(inputs, targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train()
    dist.destroy_process_group()
