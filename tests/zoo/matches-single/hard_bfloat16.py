"""A small convolutional network with bfloat16 autocast and gradient accumulation: equal up to bfloat16's precision."""

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

ACCUMULATE = 2


def main() -> None:
    torch.manual_seed(12)
    images = torch.rand(256, 1, 10, 10)
    data = TensorDataset(images, (4 * images[:, 0, :5].mean((1, 2)) > 2).long())
    sampler = DistributedSampler(data, seed=12)
    loader = DataLoader(data, batch_size=8, sampler=sampler, drop_last=True)
    layers = [
        nn.Conv2d(1, 8, 3),
        nn.GroupNorm(2, 8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(288, 2),
    ]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=len(loader) * 3 // ACCUMULATE)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for index, (x, y) in enumerate(loader):
            last = (index + 1) % ACCUMULATE == 0 or index + 1 == len(loader)
            with contextlib.nullcontext() if last else model.no_sync():
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = nn.functional.cross_entropy(model(x), y) / ACCUMULATE
                loss.backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
