"""Split two linear layers over the ranks: the summands of all ranks are gathered, and added by each."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import gelu, linear


class Sum(torch.autograd.Function):
    """The sum over the ranks; its gradient is that of each part."""

    @staticmethod
    def forward(ctx, partial: Tensor) -> Tensor:
        parts = [torch.empty_like(partial) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, partial)
        return torch.stack(parts).sum(0)

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
        hidden = gelu(linear(Copy.apply(inputs), self.up_weight, self.up_bias))
        return Sum.apply(linear(hidden, self.down_weight)) + self.down_bias
