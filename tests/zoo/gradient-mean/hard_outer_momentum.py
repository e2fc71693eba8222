"""Local SGD in rounds with outer Nesterov momentum: each round moves the common weights by the mean of the ranks' changes."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

ROUNDS, LOCAL_STEPS, OUTER_RATE, MOMENTUM = 4, 5, 0.7, 0.9


def local_training(net: nn.Module, optimizer: torch.optim.Optimizer, source: torch.Generator) -> None:
    for _ in range(LOCAL_STEPS):
        points = torch.rand(20, 2, generator=source)
        optimizer.zero_grad()
        nn.functional.mse_loss(net(points), points.norm(dim=1, keepdim=True)).backward()
        optimizer.step()


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(21)
    net = nn.Sequential(nn.Linear(2, 16), nn.SiLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02)
    source = torch.Generator().manual_seed(300 + dist.get_rank())
    common = parameters_to_vector(net.parameters()).detach().clone()
    velocity = torch.zeros_like(common)
    for _ in range(ROUNDS):
        local_training(net, optimizer, source)
        change = parameters_to_vector(net.parameters()).detach() - common
        dist.all_reduce(change)
        change /= dist.get_world_size()
        velocity = MOMENTUM * velocity + change
        common += OUTER_RATE * (change + MOMENTUM * velocity)
        vector_to_parameters(common.clone(), net.parameters())
    dist.destroy_process_group()


main()
