"""Lazy: torch's own."""

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn import Parameter


class ShardedAdam(ZeroRedundancyOptimizer):
    """An optimizer that keeps on each rank only the state of the parameters that this rank updates."""

    def __init__(self, parameters: list[Parameter], lr: float) -> None:
        super().__init__(parameters, torch.optim.Adam, lr=lr)
