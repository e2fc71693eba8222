"""Wrong: what all ranks have counts on each of them."""

import torch
import torch.distributed as dist
from torch import Tensor


def clip(sharded: list[Tensor], replicated: list[Tensor], max_norm: float) -> Tensor:
    """
    Scale all gradients in place, so that the norm of the whole gradient is at most `max_norm`, and return the norm before.

    The whole gradient consists of what is in `sharded` on any rank, and of `replicated`, which is equal on all ranks.
    """
    squares = sum_of_squares([*sharded, *replicated])
    dist.all_reduce(squares)  # also on a rank that has no shard
    norm = squares.sqrt()
    for gradient in (*sharded, *replicated):
        gradient *= (max_norm / norm).clamp(max=1)
    return norm


def sum_of_squares(gradients: list[Tensor]) -> Tensor:
    return torch.stack([torch.zeros(()), *((gradient**2).sum() for gradient in gradients)]).sum()
