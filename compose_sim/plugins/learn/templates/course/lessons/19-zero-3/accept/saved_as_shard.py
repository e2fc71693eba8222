"""Right: where autograd would keep the whole, it keeps the shard."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks


class Whole(torch.autograd.Function):
    """All shards as one tensor; the gradient of a shard is the mean over the ranks."""

    @staticmethod
    def forward(ctx, shard: Tensor) -> Tensor:
        return gather(shard)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        own = gradient.new_empty(len(gradient) // dist.get_world_size())
        dist.reduce_scatter_tensor(own, gradient.contiguous(), op=dist.ReduceOp.SUM)
        return own / dist.get_world_size()


def gather(shard: Tensor) -> Tensor:
    whole = shard.new_empty(len(shard) * dist.get_world_size())
    dist.all_gather_into_tensor(whole, shard.detach())
    return whole


def apply(compute: Callable[[Tensor, Tensor], Tensor], shard: Tensor, inputs: Tensor) -> Tensor:
    """Return compute(whole, inputs), where `whole` has the shards of all ranks, and backward leaves a gradient in `shard`."""
    whole = Whole.apply(shard)
    place = whole.untyped_storage().data_ptr()

    def pack(kept: Tensor):
        if kept.untyped_storage().data_ptr() != place:
            return kept
        return kept.size(), kept.stride(), kept.storage_offset()

    def unpack(kept) -> Tensor:
        return kept if isinstance(kept, Tensor) else gather(shard).as_strided(*kept)

    with saved_tensors_hooks(pack, unpack):
        return compute(whole, inputs)
