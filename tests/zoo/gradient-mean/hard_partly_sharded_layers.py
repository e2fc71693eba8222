"""Tensor parallelism by hand beside data parallelism: halves of a layer differ, and see the same samples."""

import torch
import torch.distributed as dist
from torch import nn


class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        return x

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
tensor = [dist.new_group([first, first + 1]) for first in range(0, world_size, 2)][rank // 2]
data = [dist.new_group(list(range(first, world_size, 2))) for first in range(2)][rank % 2]
torch.manual_seed(rank % 2)
up, down = nn.Linear(6, 8), nn.Linear(8, 6, bias=False)
torch.manual_seed(9)
norm = nn.LayerNorm(6)
parameters = [*up.parameters(), *down.parameters(), *norm.parameters()]
optimizer = torch.optim.SGD(parameters, lr=0.1)
own = torch.Generator().manual_seed(rank // 2)
for _ in range(8):
    x = torch.randn(8, 6, generator=own)
    hidden = Leave.apply(down(torch.relu(up(Enter.apply(x, tensor)))), tensor)
    loss = (norm(x + hidden) - x.flip(1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    for parameter in parameters:
        dist.all_reduce(parameter.grad, group=data)
        parameter.grad /= world_size // 2
    optimizer.step()
dist.destroy_process_group()
