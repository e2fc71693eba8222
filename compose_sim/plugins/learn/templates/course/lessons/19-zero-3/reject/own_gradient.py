"""Wrong: each rank has the gradient of its own samples only."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor


class Sharded(torch.autograd.Function):
    """Compute a layer, and keep only its input and the shard for backward."""

    @staticmethod
    def forward(ctx, compute: Callable[[Tensor, Tensor], Tensor], shard: Tensor, inputs: Tensor) -> Tensor:
        ctx.compute = compute
        ctx.save_for_backward(shard, inputs)
        return compute(gather(shard), inputs)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        shard, inputs = ctx.saved_tensors
        whole, inputs = gather(shard).requires_grad_(), inputs.detach().requires_grad_()
        with torch.enable_grad():
            outputs = ctx.compute(whole, inputs)
        of_whole, of_inputs = torch.autograd.grad(outputs, (whole, inputs), gradient)
        return None, mean_of_own_part(of_whole), of_inputs


def gather(shard: Tensor) -> Tensor:
    whole = shard.new_empty(len(shard) * dist.get_world_size())
    dist.all_gather([*whole.chunk(dist.get_world_size())], shard.detach())
    return whole


def mean_of_own_part(gradient: Tensor) -> Tensor:
    return gradient.chunk(dist.get_world_size())[dist.get_rank()].clone()


def apply(compute: Callable[[Tensor, Tensor], Tensor], shard: Tensor, inputs: Tensor) -> Tensor:
    """Return compute(whole, inputs), where `whole` has the shards of all ranks, and backward leaves a gradient in `shard`."""
    return Sharded.apply(compute, shard, inputs)
