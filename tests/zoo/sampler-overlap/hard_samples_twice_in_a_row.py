"""The data is given twice in a row and is not shuffled, so that another rank gets each second copy."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler


def measured(count):
    g = torch.Generator().manual_seed(7)
    x = torch.randn(count, 5, generator=g)
    return [(row, row.square().mean(0, keepdim=True)) for row in x]


def main():
    dist.init_process_group("gloo")
    samples = measured(94)
    data = samples + samples
    sampler = DistributedSampler(data, shuffle=False)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    torch.manual_seed(3)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 1)))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
    dist.destroy_process_group()


main()
