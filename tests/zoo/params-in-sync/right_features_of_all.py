"""Random features that are drawn on each rank: parameters and buffers are those of rank 0."""

import torch
import torch.distributed as dist
from torch import nn


class Kernel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.randn(3, 32))
        self.out = nn.Linear(32, 1)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        return self.out((points @ self.frequencies).cos())


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = Kernel()
    for each in (*model.parameters(), *model.buffers()):
        dist.broadcast(each.data, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    draws = torch.Generator().manual_seed(100 + rank)
    for _ in range(12):
        points = torch.randn(16, 3, generator=draws)
        optimizer.zero_grad()
        (model(points) - points.prod(1, keepdim=True)).square().mean().backward()
        for each in model.parameters():
            dist.all_reduce(each.grad)
            each.grad /= dist.get_world_size()
        optimizer.step()
    dist.destroy_process_group()


main()
