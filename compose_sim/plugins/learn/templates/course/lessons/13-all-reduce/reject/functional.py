"""Lazy: the collective under another name."""

import torch.distributed as dist
from torch import Tensor
from torch.distributed import _functional_collectives as functional


def all_reduce(tensor: Tensor) -> None:
    tensor.copy_(functional.all_reduce(tensor, "sum", dist.group.WORLD))
