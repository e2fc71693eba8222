"""Right: one function for both directions."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import gelu, linear


class Group(torch.autograd.Function):
    """Sum over the ranks in one of both directions."""

    @staticmethod
    def forward(ctx, tensor: Tensor, in_forward: bool) -> Tensor:
        ctx.in_forward = in_forward
        return summed(tensor) if in_forward else tensor.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient if ctx.in_forward else summed(gradient), None


def summed(tensor: Tensor) -> Tensor:
    total = tensor.contiguous().clone()
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
        hidden = gelu(linear(Group.apply(inputs, False), self.up_weight, self.up_bias))
        return self.down_bias + Group.apply(linear(hidden, self.down_weight), True)
