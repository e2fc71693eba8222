"""Image classifier configured by nested dataclasses with overrides, as Hydra users write it."""

import sys
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


@dataclass
class OptimConfig:
    lr: float = 0.01
    warmup: int = 2
    scale_by_world: bool = True


@dataclass
class Config:
    seed: int = 7
    batch_size: int = 4
    epochs: int = 2
    optim: OptimConfig = field(default_factory=OptimConfig)


def compose(overrides):
    cfg = Config()
    for item in overrides:
        key, value = item.split("=")
        target, *rest = key.split(".")
        owner = cfg
        while rest:
            owner, target = getattr(owner, target), rest.pop(0)
        setattr(owner, target, type(getattr(owner, target))(value))
    return cfg


def main(cfg):
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(cfg.seed)
    generator = torch.Generator().manual_seed(cfg.seed)
    data = TensorDataset(torch.randn(64, 3, 8, 8, generator=generator), torch.randint(0, 5, (64,), generator=generator))
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
    )
    model = DistributedDataParallel(net)
    torch.manual_seed(cfg.seed + rank)
    lr = cfg.optim.lr * (world if cfg.optim.scale_by_world else 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.25, total_iters=cfg.optim.warmup)
    sampler = DistributedSampler(data, seed=cfg.seed)
    loader = DataLoader(data, cfg.batch_size, sampler=sampler, drop_last=True)
    for epoch in range(cfg.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(2)
        for image, label in loader:
            if torch.rand(()) < 0.5:
                image = image.flip(-1)
            loss = nn.functional.cross_entropy(model(image), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            warmup.step()
            total += torch.tensor([loss.item() * len(label), len(label)])
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch} loss {total[0] / total[1]:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(compose([a for a in sys.argv[1:] if "=" in a]))
