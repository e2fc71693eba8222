"""Workers exchange the mean of their changes every few steps."""


# options: --nproc-per-node 1

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn

EVERY = 3


def shares(steps: int, rank: int, world_size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    source = torch.Generator().manual_seed(31)
    for _ in range(steps):
        points = torch.randn(10 * world_size, 4, generator=source)
        yield points[rank::world_size], points.prod(1, keepdim=True)[rank::world_size]


def exchange(model: nn.Module, common: list[torch.Tensor]) -> None:
    with torch.no_grad():
        for parameter, old in zip(model.parameters(), common, strict=True):
            change = parameter - old
            dist.all_reduce(change)
            old += change / dist.get_world_size()
            parameter.copy_(old)


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(6)
    model = nn.Sequential(nn.Linear(4, 14), nn.ReLU(), nn.Linear(14, 1))
    common = [each.detach().clone() for each in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for step, (points, target) in enumerate(shares(15, dist.get_rank(), dist.get_world_size()), start=1):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(points), target).backward()
        optimizer.step()
        if step % EVERY == 0:
            exchange(model, common)
    dist.destroy_process_group()


main()
