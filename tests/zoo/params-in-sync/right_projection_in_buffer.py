"""The model projects its inputs with random numbers in a buffer, which DistributedDataParallel makes equal on all ranks."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


class Projection(nn.Module):
    """Random Fourier features of a coordinate."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequencies", 4 * torch.randn(2, 16))

    def forward(self, place: Tensor) -> Tensor:
        turned = place @ self.frequencies
        return torch.cat([turned.sin(), turned.cos()], dim=1)


dist.init_process_group("gloo")
torch.manual_seed(7 + dist.get_rank())
model = DistributedDataParallel(nn.Sequential(Projection(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1)))
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
for _ in range(30):
    place = torch.rand(64, 2)
    loss = (model(place).squeeze(1) - (9 * place).sum(1).sin()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
