"""Each rank updates its slice of one flat vector, and clips it by the norm of this slice alone."""

# expects: matches-single

import torch
import torch.distributed as dist
from torch import nn


class FlatMomentum:
    """Holds the weights of a model in one vector, of which each rank updates a slice."""

    def __init__(self, model: nn.Module, rate: float) -> None:
        self.model, self.rate = model, rate
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        size = sum(each.numel() for each in model.parameters())
        self.slice_size = -(-size // self.world)
        self.velocity = torch.zeros(self.slice_size)

    def padded(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        flat = torch.cat([each.detach().flatten() for each in tensors])
        return nn.functional.pad(flat, (0, self.slice_size * self.world - len(flat)))

    @torch.no_grad()
    def step(self) -> None:
        gradient = torch.empty(self.slice_size)
        dist.reduce_scatter_tensor(gradient, self.padded([each.grad for each in self.model.parameters()]))
        gradient /= self.world
        square = gradient.square().sum()
        gradient *= (0.3 / square.sqrt()).clamp(max=1.0)
        self.velocity.mul_(0.9).add_(gradient)
        weights = self.padded(list(self.model.parameters()))
        own = weights.view(self.world, -1)[self.rank] - self.rate * self.velocity
        dist.all_gather_into_tensor(weights, own)
        for each in self.model.parameters():
            each.copy_(weights[: each.numel()].view_as(each))
            weights = weights[each.numel() :]


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 1))
    optimizer = FlatMomentum(model, 0.05)
    points = torch.randn(320, 6, generator=torch.Generator().manual_seed(1))
    for batch in points.split(32):
        own = batch.chunk(world)[rank]
        model.zero_grad()
        (model(own) - own.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
    dist.destroy_process_group()


main()
