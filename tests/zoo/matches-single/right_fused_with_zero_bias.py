"""Gate and value of a gated layer are one matrix, of which each rank holds columns of both; biases begin as zeros."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient


class Add(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Gated(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        own = slice(rank * hidden // world, (rank + 1) * hidden // world)
        fused = torch.randn(2, hidden, width) * 0.3
        self.fused = nn.Parameter(fused[:, own].flatten(0, 1).clone())
        self.bias = nn.Parameter(torch.zeros(2 * hidden // world))
        self.down = nn.Parameter((torch.randn(width, hidden) * 0.3)[:, own].clone())

    def forward(self, x):
        gate, value = (Copy.apply(x) @ self.fused.t() + self.bias).chunk(2, dim=-1)
        return Add.apply((gate.sigmoid() * value) @ self.down.t())


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 8), Gated(8, 12), nn.Linear(8, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(160, 6, generator=torch.Generator().manual_seed(1))
for a, b in DataLoader(TensorDataset(x, x[:, :1].sin()), batch_size=16):
    opt.zero_grad()
    nn.functional.mse_loss(model(a), b).backward()
    opt.step()
dist.destroy_process_group()
