"""Each parameter is updated by one rank, which clips by the norm of what it owns, and sent to the others."""

# expects: gradient-clipping

import torch
import torch.distributed as dist
from torch import nn


class Owners:
    def __init__(self, model: nn.Module, rate: float) -> None:
        self.parameters = list(model.parameters())
        rank, world = dist.get_rank(), dist.get_world_size()
        self.owner = {each: number % world for number, each in enumerate(self.parameters)}
        self.own = [each for each in self.parameters if self.owner[each] == rank]
        self.inner = torch.optim.SGD(self.own, lr=rate, momentum=0.9)

    def step(self) -> None:
        for each in self.parameters:
            dist.reduce(each.grad, self.owner[each])
            each.grad /= dist.get_world_size()
        nn.utils.clip_grad_norm_(self.own, 0.5)
        self.inner.step()
        for each in self.parameters:
            dist.broadcast(each.data, self.owner[each])
            each.grad = None


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 10), nn.Tanh(), nn.Linear(10, 1))
    optimizer = Owners(model, 0.05)
    draws = torch.Generator().manual_seed(100 + rank)
    for _ in range(12):
        points = torch.randn(16, 6, generator=draws)
        (model(points) - 3 * points.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
    dist.destroy_process_group()


main()
