"""Right: as FSDP1 does, the storage of the whole is freed after forward, filled again for backward, and freed again."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, shard: Tensor) -> Tensor:
        ctx.whole = whole = shard.new_empty(len(shard) * dist.get_world_size())
        dist.all_gather_into_tensor(whole, shard)
        return whole.view(-1)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        ctx.whole.untyped_storage().resize_(0)
        own = gradient.new_empty(len(gradient) // dist.get_world_size())
        dist.reduce_scatter_tensor(own, gradient)
        return own / dist.get_world_size()


def apply(compute: Callable[[Tensor, Tensor], Tensor], shard: Tensor, inputs: Tensor) -> Tensor:
    """Return compute(whole, inputs), where `whole` has the shards of all ranks, and backward leaves a gradient in `shard`."""
    whole = Gather.apply(shard)
    data = whole.detach()
    outputs = compute(whole, inputs)
    size = data.untyped_storage().nbytes()
    data.untyped_storage().resize_(0)

    def fill(gradient: Tensor) -> Tensor:
        data.untyped_storage().resize_(size)
        with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(data):
            dist.all_gather_into_tensor(data, shard.detach())
        return gradient

    outputs.register_hook(fill)
    return outputs
