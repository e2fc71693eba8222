"""Ranks share a body, which DistributedDataParallel trains, and each has a head of its own for the samples of its site."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCH = 16


def samples(step: int, rank: int, world: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch of all sites, of which this one has a part."""
    draws = torch.Generator().manual_seed(step)
    inputs = torch.randn(BATCH * world, 6, generator=draws)
    own = inputs[rank::world]
    return own, own[:, :2].sum(dim=1, keepdim=True) * (1 + rank)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    body = DistributedDataParallel(nn.Sequential(nn.Linear(6, 16), nn.Tanh()))
    torch.manual_seed(1 + rank)
    head = nn.Linear(16, 1)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.05) for each in (body, head)]
    for step in range(12):
        inputs, targets = samples(step, rank, world)
        loss = nn.functional.mse_loss(head(body(inputs)), targets)
        for each in optimizers:
            each.zero_grad()
        loss.backward()
        for each in optimizers:
            each.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
