"""Wrong: two models are trained, and mixed once."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
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
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    model = DistributedDataParallel(Regression())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            loss = model.module.loss(inputs, targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    for parameter in model.parameters():
        dist.all_reduce(parameter.data)
        parameter.data /= dist.get_world_size()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train()
    dist.destroy_process_group()
