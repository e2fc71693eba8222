"""Share out a network over four ranks, in two ways at once. harness.py trains with it, and measures memory and traffic."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.nn.functional import gelu, linear


class Mean(torch.autograd.Function):
    """The parameter itself, with the mean of its gradients in a group."""

    @staticmethod
    def forward(ctx, parameter: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return parameter.view_as(parameter)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        mean = gradient.clone()
        dist.all_reduce(mean, group=ctx.group)
        return mean / dist.get_world_size(ctx.group), None


class MLP(nn.Module):
    """
    Compute down(gelu(up(inputs))).

    Ranks of `tensor_group` have the same inputs, and each has a part of the layers. Ranks of `data_group` have other inputs
    and the same part of the layers, of which each keeps a shard.
    """

    def __init__(self, up: nn.Linear, down: nn.Linear, tensor_group: ProcessGroup, data_group: ProcessGroup) -> None:
        super().__init__()
        self.tensor_group, self.data_group = tensor_group, data_group
        self.up_weight, self.up_bias = nn.Parameter(up.weight.detach().clone()), nn.Parameter(up.bias.detach().clone())
        self.down_weight = nn.Parameter(down.weight.detach().clone())
        self.down_bias = nn.Parameter(down.bias.detach().clone())

    def forward(self, inputs: Tensor) -> Tensor:
        up_weight, up_bias = Mean.apply(self.up_weight, self.data_group), Mean.apply(self.up_bias, self.data_group)
        down_weight = Mean.apply(self.down_weight, self.data_group)
        down_bias = Mean.apply(self.down_bias, self.data_group)
        return linear(gelu(linear(inputs, up_weight, up_bias)), down_weight, down_bias)
