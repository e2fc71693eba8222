"""Right: flat parts of equal size, each with a copy of its parameters."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter
from torch.nn.utils import parameters_to_vector, vector_to_parameters


class ShardedAdam:
    """An optimizer that keeps on each rank only the state of the parameters that this rank updates."""

    def __init__(self, parameters: list[Parameter], lr: float) -> None:
        self.parameters = parameters
        self.elements = sum(each.numel() for each in parameters)
        self.size = -(-self.elements // dist.get_world_size())
        self.part = Parameter(self.cut(parameters_to_vector(parameters).detach()))
        self.optimizer = torch.optim.Adam([self.part], lr=lr)

    def cut(self, flat: Tensor) -> Tensor:
        padded = torch.nn.functional.pad(flat, (0, self.size * dist.get_world_size() - self.elements))
        return padded.split(self.size)[dist.get_rank()].clone()

    def step(self) -> None:
        """Update all parameters on all ranks; called on every rank when gradients are averaged."""
        self.part.grad = self.cut(torch.cat([each.grad.flatten() for each in self.parameters]))
        self.optimizer.step()
        self.part.grad = None
        flat = torch.empty(self.size * dist.get_world_size())
        dist.all_gather_into_tensor(flat, self.part.detach())
        vector_to_parameters(flat[: self.elements], self.parameters)
