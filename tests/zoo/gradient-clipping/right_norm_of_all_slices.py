"""ZeRO by hand on one flat buffer: ranks add up the squares of their slices before they clip."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

LIMIT, RATE, MOMENTUM = 0.5, 0.05, 0.9


class Sliced:
    def __init__(self, parameters):
        self.parameters, self.world = list(parameters), dist.get_world_size()
        flat = parameters_to_vector(self.parameters).detach()
        self.size = len(flat)
        self.flat = nn.functional.pad(flat, (0, -self.size % self.world))
        self.own = self.flat.chunk(self.world)[dist.get_rank()].clone()
        self.velocity = torch.zeros_like(self.own)

    @torch.no_grad()
    def step(self):
        whole = torch.zeros_like(self.flat)
        whole[: self.size] = parameters_to_vector([p.grad for p in self.parameters])
        gradient = torch.empty_like(self.own)
        dist.reduce_scatter_tensor(gradient, whole)
        gradient /= self.world
        square = gradient.norm() ** 2
        dist.all_reduce(square)
        norm = square.sqrt()
        gradient *= (LIMIT / (norm + 1e-6)).clamp(max=1)
        self.velocity.mul_(MOMENTUM).add_(gradient)
        self.own -= RATE * self.velocity
        dist.all_gather_into_tensor(self.flat, self.own)
        vector_to_parameters(self.flat[: self.size], self.parameters)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = Sliced(model.parameters())
    x = torch.randn(480, 6, generator=torch.Generator().manual_seed(1)) * 3
    for rows in torch.arange(480).split(48):
        rows = rows[rank::world]
        loss = nn.functional.mse_loss(model(x[rows]), x[rows].sum(1, keepdim=True))
        model.zero_grad()
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss.detach())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
