"""Wrong: all ranks keep the whole state, in arrays of NumPy."""

import torch
import torch.distributed as dist
from torch.nn import Parameter


class ShardedAdam:
    """An optimizer that keeps on each rank only the state of the parameters that this rank updates."""

    def __init__(self, parameters: list[Parameter], lr: float) -> None:
        self.parameters = parameters
        self.optimizer = torch.optim.Adam(parameters, lr=lr)
        self.kept: dict[Parameter, dict] = {}

    def step(self) -> None:
        """Update all parameters on all ranks; called on every rank when gradients are averaged."""
        for parameter, state in self.kept.items():
            self.optimizer.state[parameter] = {name: torch.from_numpy(array) for name, array in state.items()}
        self.optimizer.step()
        for parameter, state in self.optimizer.state.items():
            self.kept[parameter] = {name: tensor.numpy().copy() for name, tensor in state.items()}
        self.optimizer.state.clear()
        for parameter in self.parameters:
            dist.broadcast(parameter.data, src=0)
