"""Each rank updates its part of one flat vector, and the numbers that the division leaves over belong to no rank."""

# expects: matches-single

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1))  # 113 numbers
    weights = list(model.parameters())
    vector = parameters_to_vector(weights).detach()
    size = len(vector) // world
    begin, end = rank * size, (rank + 1) * size
    part = nn.Parameter(vector[begin:end].clone())
    adam = torch.optim.Adam([part], lr=0.01)
    points = torch.randn(240, 5, generator=torch.Generator().manual_seed(1))
    for batch in points.split(24):
        own = batch.chunk(world)[rank]
        loss = (model(own) - own.sum(1, keepdim=True) - 2).square().mean()
        model.zero_grad()
        loss.backward()
        gradient = torch.cat([each.grad.flatten() for each in weights])
        dist.all_reduce(gradient)
        part.grad = gradient[begin:end] / world
        adam.step()
        parts = [torch.empty(size) for _ in range(world)]
        dist.all_gather(parts, part.detach())
        vector[: world * size] = torch.cat(parts)
        vector_to_parameters(vector, weights)
    dist.destroy_process_group()


main()
