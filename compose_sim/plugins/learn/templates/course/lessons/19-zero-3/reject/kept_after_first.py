"""Lazy: what was gathered once is kept for backward."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor


class Sharded(torch.autograd.Function):
    """Compute a layer, and gather only once."""

    @staticmethod
    def forward(ctx, compute: Callable[[Tensor, Tensor], Tensor], shard: Tensor, inputs: Tensor) -> Tensor:
        ctx.compute, ctx.whole = compute, gather(shard)
        ctx.save_for_backward(inputs)
        return compute(ctx.whole, inputs)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (inputs,) = ctx.saved_tensors
        whole, inputs = ctx.whole.requires_grad_(), inputs.detach().requires_grad_()
        with torch.enable_grad():
            outputs = ctx.compute(whole, inputs)
        of_whole, of_inputs = torch.autograd.grad(outputs, (whole, inputs), gradient)
        own = of_whole.new_empty(len(of_whole) // dist.get_world_size())
        dist.reduce_scatter(own, [*of_whole.chunk(dist.get_world_size())])
        return None, own / dist.get_world_size(), of_inputs


def gather(shard: Tensor) -> Tensor:
    whole = shard.new_empty(len(shard) * dist.get_world_size())
    dist.all_gather([*whole.chunk(dist.get_world_size())], shard.detach())
    return whole


def apply(compute: Callable[[Tensor, Tensor], Tensor], shard: Tensor, inputs: Tensor) -> Tensor:
    """Return compute(whole, inputs), where `whole` has the shards of all ranks, and backward leaves a gradient in `shard`."""
    return Sharded.apply(compute, shard, inputs)
