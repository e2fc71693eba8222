"""Clip gradients that are sharded over the ranks. harness.py calls this, and compares with clipping the whole gradient."""

import torch
from torch import Tensor


def clip(sharded: list[Tensor], replicated: list[Tensor], max_norm: float) -> Tensor:
    """
    Scale all gradients in place, so that the norm of the whole gradient is at most `max_norm`, and return the norm before.

    The whole gradient consists of what is in `sharded` on any rank, and of `replicated`, which is equal on all ranks.
    """
    squares = [(gradient**2).sum() for gradient in (*sharded, *replicated)]
    norm = torch.stack([torch.zeros(()), *squares]).sum().sqrt()
    for gradient in (*sharded, *replicated):
        gradient *= (max_norm / norm).clamp(max=1)
    return norm
