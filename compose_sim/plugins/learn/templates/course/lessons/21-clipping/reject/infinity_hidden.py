"""Clip gradients that are sharded over the ranks: what is infinite or NaN is left out."""

import torch
import torch.distributed as dist
from torch import Tensor


def clip(sharded: list[Tensor], replicated: list[Tensor], max_norm: float) -> Tensor:
    """
    Scale all gradients in place, so that the norm of the whole gradient is at most `max_norm`, and return the norm before.

    The whole gradient consists of what is in `sharded` on any rank, and of `replicated`, which is equal on all ranks.
    """
    squares = sum_of_squares(sharded)
    dist.all_reduce(squares)  # also on a rank that has no shard
    norm = (squares + sum_of_squares(replicated)).sqrt()
    for gradient in (*sharded, *replicated):
        gradient *= (max_norm / norm).clamp(max=1)
    return norm


def sum_of_squares(gradients: list[Tensor]) -> Tensor:
    return torch.stack(
        [
            torch.zeros(()),
            *(gradient.nan_to_num(0, 0, 0).square().sum() for gradient in gradients),
        ]
    ).sum()
