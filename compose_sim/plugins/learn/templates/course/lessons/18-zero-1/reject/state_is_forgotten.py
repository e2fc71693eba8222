"""Wrong: a new state in each step."""

import torch
from torch.nn import Parameter


class ShardedAdam:
    """An optimizer that keeps on each rank only the state of the parameters that this rank updates."""

    def __init__(self, parameters: list[Parameter], lr: float) -> None:
        self.parameters = parameters
        self.lr = lr

    def step(self) -> None:
        """Update all parameters on all ranks; called on every rank when gradients are averaged."""
        torch.optim.Adam(self.parameters, lr=self.lr).step()
