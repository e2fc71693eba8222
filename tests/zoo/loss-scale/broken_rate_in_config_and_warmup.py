"""The learning rate is multiplied by the world size by the configuration and again by the warm-up."""

# expects: loss-scale

from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


@dataclass
class OptimConfig:
    lr: float = 0.01
    warmup: int = 3


def resolve(cfg, world):
    return OptimConfig(lr=cfg.lr * world, warmup=cfg.warmup)


def gradual(world, warmup):
    """Goyal's warm-up: from the base rate to world times the base rate."""
    return lambda step: 1 + (world - 1) * min(step, warmup) / warmup


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    cfg = resolve(OptimConfig(), world)
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(128, 16), torch.randint(0, 4, (128,)))
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg.lr, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, gradual(world, cfg.warmup))
    sampler = DistributedSampler(data, seed=1)
    loader = DataLoader(data, 4, sampler=sampler)
    sampler.set_epoch(0)
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    if rank == 0:
        print("lr", schedule.get_last_lr())
    dist.destroy_process_group()


main()
