"""Megatron-style tensor parallelism by hand: every rank sees the same batch."""

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, g):
        g = g.contiguous()
        dist.all_reduce(g)
        return g


class Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g


class ParallelMLP(nn.Module):
    def __init__(self, d, h, rank, world):
        super().__init__()
        torch.manual_seed(5)
        full_up, full_down = nn.Linear(d, h), nn.Linear(h, d, bias=False)
        s = slice(rank * h // world, (rank + 1) * h // world)
        self.up = nn.Parameter(full_up.weight.detach()[s].clone())
        self.up_b = nn.Parameter(full_up.bias.detach()[s].clone())
        self.down = nn.Parameter(full_down.weight.detach()[:, s].clone())
        self.bias = nn.Parameter(torch.zeros(d))

    def forward(self, x):
        h = F.gelu(F.linear(Copy.apply(x), self.up, self.up_b))
        return x + Reduce.apply(F.linear(h, self.down)) + self.bias


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    emb = nn.Linear(8, 16)
    net = nn.Sequential(emb, ParallelMLP(16, 32, rank, world), ParallelMLP(16, 32, rank, world), nn.Linear(16, 2))
    torch.manual_seed(1)
    nn.init.normal_(net[3].weight, std=0.1)
    nn.init.zeros_(net[3].bias)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
    data = torch.Generator().manual_seed(42)
    for step in range(12):
        x = torch.randn(16, 8, generator=data)
        y = (x.sum(1) > 0).long()
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0:
            print(step, loss.item())
    dist.destroy_process_group()


main()
