"""A generator and a discriminator, each with an optimizer; no seed, and an endless loader instead of epochs."""

import itertools
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import softplus
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def forever(loader: DataLoader, sampler: DistributedSampler) -> Iterator[list[torch.Tensor]]:
    for epoch in itertools.count():
        sampler.set_epoch(epoch)
        yield from loader


def main() -> None:
    real = torch.randn(256, 2, generator=torch.Generator().manual_seed(0)) * 0.5 + 1.0
    codes = torch.randn(256, 4, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(real, codes)
    sampler = DistributedSampler(data)
    batches = forever(DataLoader(data, batch_size=16, sampler=sampler), sampler)
    make = DistributedDataParallel(nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(0.2), nn.Linear(16, 2)))
    judge = DistributedDataParallel(nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1)))
    of_make = torch.optim.Adam(make.parameters(), lr=2e-3, betas=(0.5, 0.99))
    of_judge = torch.optim.Adam(judge.parameters(), lr=2e-3, betas=(0.5, 0.99))
    for _ in range(12):
        points, code = next(batches)
        made = make(code)
        of_judge.zero_grad()
        # One forward for both: DDP reduces once for each backward after a forward.
        scores = judge(torch.cat([points, made.detach()]))
        real_scores, made_scores = scores.chunk(2)
        (softplus(-real_scores).mean() + softplus(made_scores).mean()).backward()
        of_judge.step()
        of_make.zero_grad()
        for parameter in judge.parameters():
            parameter.requires_grad_(False)
        softplus(-judge.module(made)).mean().backward()
        of_make.step()
        for parameter in judge.parameters():
            parameter.requires_grad_(True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
