"""The loss adds up a matrix over ranks with an all_reduce that has a gradient."""

# options: --nproc-per-node 1

import torch
import torch.distributed as dist
import torch.distributed.nn
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class BarlowTwinsLoss(nn.Module):
    def __init__(self, lambda_param=5e-3, gather_distributed=False):
        super().__init__()
        self.lambda_param, self.gather_distributed = lambda_param, gather_distributed

    def forward(self, z_a, z_b):
        n, d = z_a.shape
        c = z_a.t() @ z_b / n
        if self.gather_distributed and dist.is_initialized():
            world_size = dist.get_world_size()
            if world_size > 1:
                c = c / world_size
                c = torch.distributed.nn.functional.all_reduce(c)
        on = torch.diagonal(c).add(-1).pow(2).sum()
        off = c.flatten()[:-1].view(d - 1, d + 1)[:, 1:].pow(2).sum()
        return on + self.lambda_param * off


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(7)
    base = torch.randn(96, 10)
    data = TensorDataset(base + 0.1 * torch.randn_like(base), base + 0.1 * torch.randn_like(base))
    sampler = DistributedSampler(data, seed=1)
    net = DistributedDataParallel(nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 8)))
    criterion = BarlowTwinsLoss(gather_distributed=True)
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for a, b in DataLoader(data, batch_size=12, sampler=sampler, drop_last=True):
            opt.zero_grad()
            za, zb = net(torch.cat([a, b])).chunk(2)
            criterion(za, zb).backward()
            opt.step()
    dist.destroy_process_group()


main()
