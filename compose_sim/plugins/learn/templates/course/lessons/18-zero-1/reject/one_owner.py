"""Wrong: rank 0 keeps everything."""

import torch
import torch.distributed as dist
from torch.nn import Parameter


class ShardedAdam:
    """An optimizer that keeps on each rank only the state of the parameters that this rank updates."""

    def __init__(self, parameters: list[Parameter], lr: float) -> None:
        self.owned: list[list[Parameter]] = [[] for _ in range(dist.get_world_size())]
        for parameter in sorted(parameters, key=Parameter.numel, reverse=True):  # the same order on all ranks
            self.owned[0].append(parameter)
        self.optimizer = torch.optim.Adam(self.owned[0], lr=lr) if dist.get_rank() == 0 else None

    def step(self) -> None:
        """Update all parameters on all ranks; called on every rank when gradients are averaged."""
        if self.optimizer:
            self.optimizer.step()
        for owner, parameters in enumerate(self.owned):
            for parameter in parameters:
                dist.broadcast(parameter.data, src=owner)
