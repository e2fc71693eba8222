"""Every rank takes its chunk of a global batch of stored sequences, and DDP takes the mean of means over equal chunks."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH, GLOBAL_BATCH = 12, 24


def batches(series: torch.Tensor, seed: int):
    order = torch.randperm(len(series), generator=torch.Generator().manual_seed(seed))
    for indices in order.split(GLOBAL_BATCH):
        yield series[indices.chunk(dist.get_world_size())[dist.get_rank()]]


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(7)
    series = torch.randn(96, WIDTH + 1).cumsum(1) / 4
    model = DistributedDataParallel(nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    for epoch in range(3):
        for part in batches(series, seed=epoch):
            past, future = part[:, :WIDTH], part[:, WIDTH:]
            optimizer.zero_grad()
            F.smooth_l1_loss(model(past), future).backward()
            optimizer.step()
    dist.destroy_process_group()


main()
