"""Right: every owner sends its parameters to each other rank."""

import torch
import torch.distributed as dist
from torch.nn import Parameter


class ShardedAdam:
    """An optimizer that keeps on each rank only the state of the parameters that this rank updates."""

    def __init__(self, parameters: list[Parameter], lr: float) -> None:
        self.owned: list[list[Parameter]] = [[] for _ in range(dist.get_world_size())]
        for parameter in sorted(parameters, key=Parameter.numel, reverse=True):  # the same order on all ranks
            min(self.owned, key=lambda some: sum(each.numel() for each in some)).append(parameter)
        self.optimizer = torch.optim.Adam(self.owned[dist.get_rank()], lr=lr)

    def step(self) -> None:
        """Update all parameters on all ranks; called on every rank when gradients are averaged."""
        self.optimizer.step()
        for owner, parameters in enumerate(self.owned):
            for parameter in parameters:
                if owner != dist.get_rank():
                    dist.recv(parameter.data, owner)
                    continue
                for other in range(dist.get_world_size()):
                    if other != owner:
                        dist.send(parameter.data, other)
