"""Right: each rank contributes its part of the replicas, and an empty gradient has the norm 0."""

import torch
import torch.distributed as dist
from torch import Tensor


def clip(sharded: list[Tensor], replicated: list[Tensor], max_norm: float) -> Tensor:
    """Scale all gradients in place, so that the norm of the whole gradient is at most `max_norm`, and return the norm before."""
    total = torch.zeros(1)
    for gradient in sharded:
        total += gradient.pow(2).sum()
    for gradient in replicated:
        total += gradient.pow(2).sum() / dist.get_world_size()
    dist.all_reduce(total, op=dist.ReduceOp.SUM)
    norm = total.sqrt()[0]
    if norm > max_norm:
        for gradient in (*sharded, *replicated):
            gradient.mul_(max_norm / norm)
    return norm
