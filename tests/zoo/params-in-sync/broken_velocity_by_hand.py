"""Momentum without an optimizer of torch: the gradients of biases are not reduced."""

# expects: params-in-sync
# also: matches-single, gradient-mean

import torch
import torch.distributed as dist
from torch import nn


class Momentum:
    def __init__(self, model: nn.Module, rate: float) -> None:
        self.parameters, self.rate = list(model.parameters()), rate
        self.velocities = [torch.zeros_like(each) for each in self.parameters]

    @torch.no_grad()
    def step(self) -> None:
        for weight, velocity in zip(self.parameters, self.velocities, strict=True):
            if weight.dim() > 1:
                dist.all_reduce(weight.grad)
            velocity.mul_(0.9).add_(weight.grad / dist.get_world_size())
            weight.sub_(velocity, alpha=self.rate)
            weight.grad = None


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))
    optimizer = Momentum(model, 0.05)
    points = torch.randn(320, 6, generator=torch.Generator().manual_seed(1))
    for batch in points.split(32):
        own = batch.chunk(world)[rank]
        (model(own) - own.prod(1, keepdim=True)).square().mean().backward()
        optimizer.step()
    dist.destroy_process_group()


main()
