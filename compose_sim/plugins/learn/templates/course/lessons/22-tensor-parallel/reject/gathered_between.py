"""Wasteful: the hidden layer travels too."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import gelu, linear


class Gathered(torch.autograd.Function):
    """The parts of all ranks, side by side; the gradient of the own part."""

    @staticmethod
    def forward(ctx, part: Tensor) -> Tensor:
        parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, part.contiguous())
        return torch.cat(parts, dim=-1)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return gradient.chunk(dist.get_world_size(), dim=-1)[dist.get_rank()].contiguous()


class Sum(torch.autograd.Function):
    """The sum over the ranks; its gradient is that of each part."""

    @staticmethod
    def forward(ctx, partial: Tensor) -> Tensor:
        total = partial.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return gradient


class Copy(torch.autograd.Function):
    """The same inputs for the parts of all ranks; each part contributes to their gradient."""

    @staticmethod
    def forward(ctx, inputs: Tensor) -> Tensor:
        return inputs.view_as(inputs)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        total = gradient.clone()
        dist.all_reduce(total)
        return total


class ParallelMLP(nn.Module):
    """Compute down(gelu(up(inputs))), where each rank has a part of both layers, and all ranks have the same inputs and outputs."""

    def __init__(self, up: nn.Linear, down: nn.Linear) -> None:
        super().__init__()
        rank, ranks = dist.get_rank(), dist.get_world_size()
        self.up_weight = nn.Parameter(up.weight.detach().chunk(ranks, dim=0)[rank].clone())
        self.up_bias = nn.Parameter(up.bias.detach().chunk(ranks)[rank].clone())
        self.down_weight = nn.Parameter(down.weight.detach().chunk(ranks, dim=1)[rank].clone())
        self.down_bias = nn.Parameter(down.bias.detach().clone())

    def forward(self, inputs: Tensor) -> Tensor:
        part = gelu(linear(Copy.apply(inputs), self.up_weight, self.up_bias))
        hidden = Gathered.apply(part)  # not needed: each rank uses its part only
        own = hidden.chunk(dist.get_world_size(), dim=-1)[dist.get_rank()]
        return Sum.apply(linear(own, self.down_weight)) + self.down_bias
