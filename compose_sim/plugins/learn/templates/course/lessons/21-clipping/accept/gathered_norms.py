"""Right: the norms of the ranks are gathered, and the norm of norms is the norm of everything."""

import torch
import torch.distributed as dist
from torch import Tensor


def clip(sharded: list[Tensor], replicated: list[Tensor], max_norm: float) -> Tensor:
    """Scale all gradients in place, so that the norm of the whole gradient is at most `max_norm`, and return the norm before."""
    norms = [torch.zeros(()) for _ in range(dist.get_world_size())]
    dist.all_gather(norms, norm_of(sharded))
    norm = torch.stack([*norms, norm_of(replicated)]).norm()
    for gradient in (*sharded, *replicated):
        gradient *= (max_norm / norm).clamp(max=1)
    return norm


def norm_of(gradients: list[Tensor]) -> Tensor:
    return torch.cat([torch.zeros(1), *(gradient.flatten() for gradient in gradients)]).norm()
