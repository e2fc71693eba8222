"""Right: three small functions, and what they gather is recomputed, as in lesson 17."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.nn.functional import gelu, linear
from torch.utils.checkpoint import checkpoint


class Whole(torch.autograd.Function):
    """The shards of a group as one tensor; the gradient of a shard is the mean over the group."""

    @staticmethod
    def forward(ctx, shard: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        whole = shard.new_empty(len(shard) * dist.get_world_size(group))
        dist.all_gather([*whole.chunk(dist.get_world_size(group))], shard, group=group)
        return whole

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        size = dist.get_world_size(ctx.group)
        own = gradient.new_empty(len(gradient) // size)
        dist.reduce_scatter(own, [*gradient.chunk(size)], group=ctx.group)
        return own / size, None


class Copy(torch.autograd.Function):
    """The same inputs for the parts of a group, each of which contributes to their gradient."""

    @staticmethod
    def forward(ctx, inputs: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return inputs.view_as(inputs)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        total = gradient.clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None


class Sum(torch.autograd.Function):
    """The sum over a group; its gradient is that of each part."""

    @staticmethod
    def forward(ctx, partial: Tensor, group: ProcessGroup) -> Tensor:
        total = partial.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class MLP(nn.Module):
    """
    Compute down(gelu(up(inputs))).

    Ranks of `tensor_group` have the same inputs, and each has a part of the layers. Ranks of `data_group` have other inputs
    and the same part of the layers, of which each keeps a shard.
    """

    def __init__(self, up: nn.Linear, down: nn.Linear, tensor_group: ProcessGroup, data_group: ProcessGroup) -> None:
        super().__init__()
        self.tensor_group, self.data_group = tensor_group, data_group
        parts, part = dist.get_world_size(tensor_group), dist.get_rank(tensor_group)
        shards, shard = dist.get_world_size(data_group), dist.get_rank(data_group)
        pieces = [
            up.weight.chunk(parts)[part],
            up.bias.chunk(parts)[part],
            down.weight.chunk(parts, 1)[part],
            down.bias,
        ]
        self.shapes = [each.shape for each in pieces]
        flat = torch.cat([each.detach().flatten() for each in pieces])
        self.shard = nn.Parameter(flat.chunk(shards)[shard].clone())

    def partial(self, inputs: Tensor, shard: Tensor) -> tuple[Tensor, Tensor]:
        """Return the summand of this rank, and the bias."""
        whole = Whole.apply(shard, self.data_group)
        pieces = whole.split([shape.numel() for shape in self.shapes])
        up, up_bias, down, down_bias = (each.view(shape) for each, shape in zip(pieces, self.shapes, strict=True))
        hidden = gelu(linear(Copy.apply(inputs, self.tensor_group), up, up_bias))
        return linear(hidden, down), down_bias.clone()  # a view would keep the whole

    def forward(self, inputs: Tensor) -> Tensor:
        partial, bias = checkpoint(self.partial, inputs, self.shard, use_reentrant=False)
        return Sum.apply(partial, self.tensor_group) + bias
