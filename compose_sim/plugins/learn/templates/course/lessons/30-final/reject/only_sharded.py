"""Wasteful: ZeRO-3 over four ranks; each layer is gathered as a whole, from all of them."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.nn.functional import gelu, linear


class Block(torch.autograd.Function):
    """Compute the summand of this rank, and keep only its input and the shard."""

    @staticmethod
    def forward(ctx, inputs: Tensor, shard: Tensor, layers: "MLP") -> Tensor:
        ctx.layers = layers
        ctx.save_for_backward(inputs, shard)
        total = layers.partial(inputs, gather(shard, layers.data_group))
        dist.all_reduce(total, group=layers.tensor_group)
        return total

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        inputs, shard = ctx.saved_tensors
        group, size = ctx.layers.data_group, dist.get_world_size(ctx.layers.data_group)
        inputs, whole = inputs.detach().requires_grad_(), gather(shard, group).requires_grad_()
        with torch.enable_grad():
            partial = ctx.layers.partial(inputs, whole)
        of_inputs, of_whole = torch.autograd.grad(partial, (inputs, whole), gradient)
        dist.all_reduce(of_inputs, group=ctx.layers.tensor_group)
        own = torch.empty_like(shard)
        dist.reduce_scatter(own, [*of_whole.chunk(size)], group=group)
        return of_inputs, own / size, None


def gather(shard: Tensor, group: ProcessGroup) -> Tensor:
    whole = shard.new_empty(len(shard) * dist.get_world_size(group))
    dist.all_gather([*whole.chunk(dist.get_world_size(group))], shard.detach(), group=group)
    return whole


class MLP(nn.Module):
    """
    Compute down(gelu(up(inputs))).

    Ranks of `tensor_group` have the same inputs, and each has a part of the layers. Ranks of `data_group` have other inputs
    and the same part of the layers, of which each keeps a shard.
    """

    def __init__(self, up: nn.Linear, down: nn.Linear, tensor_group: ProcessGroup, data_group: ProcessGroup) -> None:
        super().__init__()
        tensor_group, data_group = dist.new_group([dist.get_rank()], use_local_synchronization=True), dist.group.WORLD
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

    def partial(self, inputs: Tensor, whole: Tensor) -> Tensor:
        pieces = whole.split([shape.numel() for shape in self.shapes])
        up, up_bias, down, bias = (each.view(shape) for each, shape in zip(pieces, self.shapes, strict=True))
        is_first = dist.get_rank(self.tensor_group) == 0
        return linear(gelu(linear(inputs, up, up_bias)), down, bias if is_first else bias * 0)

    def forward(self, inputs: Tensor) -> Tensor:
        return Block.apply(inputs, self.shard, self)
