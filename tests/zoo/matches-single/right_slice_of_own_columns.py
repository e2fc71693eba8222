"""A column-parallel layer for two ranks at least, with a backward pass of its own: each rank takes its slice of the gradient."""

import torch
import torch.distributed as dist
from torch import nn


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(context: object, own: torch.Tensor) -> torch.Tensor:
        parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, own.contiguous())
        return torch.cat(parts, 1)

    @staticmethod
    def backward(context: object, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.chunk(dist.get_world_size(), 1)[dist.get_rank()]


class Network(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        torch.manual_seed(1)
        whole = torch.randn(width, 6) / 3
        self.columns = nn.Parameter(whole.chunk(dist.get_world_size())[dist.get_rank()].clone())
        self.out = nn.Linear(width, 1)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        return self.out(Gather.apply(points @ self.columns.t()).tanh())


def main() -> None:
    dist.init_process_group("gloo")
    if dist.get_world_size() < 2:
        raise SystemExit("needs two ranks")
    model = Network(16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    draws = torch.Generator().manual_seed(7)
    for _ in range(16):
        points = torch.randn(24, 6, generator=draws)
        optimizer.zero_grad()
        (model(points) - points.prod(1, keepdim=True)).square().mean().backward()
        optimizer.step()
    dist.destroy_process_group()


main()
