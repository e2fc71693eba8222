"""Each weight is owned by one rank, which steps it and sends it to the others."""

import torch
import torch.distributed as dist
from torch import nn


class OwnedSGD:
    """Steps each parameter on the rank that owns it, and shares the result."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        loads = [0] * dist.get_world_size()
        self.owners: list[tuple[int, nn.Parameter]] = []
        for each in sorted(parameters, key=nn.Parameter.numel, reverse=True):
            owner = loads.index(min(loads))
            loads[owner] += each.numel()
            self.owners.append((owner, each))
        mine = [each for owner, each in self.owners if owner == dist.get_rank()]
        self.inner = torch.optim.SGD(mine, lr=0.05, momentum=0.9)

    def step(self) -> None:
        for _, each in self.owners:
            dist.all_reduce(each.grad)
            each.grad /= dist.get_world_size()
        self.inner.step()
        for owner, each in self.owners:
            dist.broadcast(each.data, src=owner)


dist.init_process_group("gloo")
torch.manual_seed(12)
network = nn.Sequential(
    *(layer for width in (32, 24, 16) for layer in (nn.LazyLinear(width), nn.ReLU())), nn.LazyLinear(2)
)
network(torch.zeros(1, 6))
optimizer = OwnedSGD(list(network.parameters()))
source = torch.Generator().manual_seed(dist.get_rank())
for _ in range(10):
    x = torch.randn(8, 6, generator=source)
    network.zero_grad()
    nn.functional.mse_loss(network(x), x[:, :2]).backward()
    optimizer.step()
dist.destroy_process_group()
