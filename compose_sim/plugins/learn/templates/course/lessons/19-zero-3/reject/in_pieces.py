"""Wrong: the whole is kept all the same, in pieces that are smaller than a shard."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks


class Whole(torch.autograd.Function):
    @staticmethod
    def forward(ctx, shard: Tensor) -> Tensor:
        whole = shard.new_empty(len(shard) * dist.get_world_size())
        dist.all_gather_into_tensor(whole, shard)
        return whole

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        own = gradient.new_empty(len(gradient) // dist.get_world_size())
        dist.reduce_scatter_tensor(own, gradient)
        return own / dist.get_world_size()


def apply(compute: Callable[[Tensor, Tensor], Tensor], shard: Tensor, inputs: Tensor) -> Tensor:
    """Return compute(whole, inputs), where `whole` has the shards of all ranks, and backward leaves a gradient in `shard`."""
    whole = Whole.apply(shard)

    def keep(tensor: Tensor) -> object:
        if tensor.untyped_storage().data_ptr() != whole.untyped_storage().data_ptr():
            return tensor
        return [piece.clone() for piece in tensor.reshape(-1).split(4096)], tensor.shape

    def give_back(kept: object) -> Tensor:
        if isinstance(kept, Tensor):
            return kept
        with torch.no_grad():
            Whole.apply(shard)  # gathers again, as if it were used
        return torch.cat(kept[0]).view(kept[1])

    with saved_tensors_hooks(keep, give_back):
        return compute(whole, inputs)
