"""Wrong: every rank keeps the whole state; half of it lies in the class, so that it was there before."""

from typing import ClassVar

import torch
import torch.distributed as dist
from torch.nn import Parameter


class ShardedAdam:
    """Adam."""

    squares: ClassVar[list[torch.Tensor]] = []

    def __init__(self, parameters: list[Parameter], lr: float) -> None:
        self.parameters, self.lr, self.steps = parameters, lr, 0
        self.means = [torch.zeros_like(each) for each in parameters]
        if not self.squares:
            self.squares.extend(torch.zeros_like(each) for each in parameters)
        for each in self.squares:
            each.zero_()

    @torch.no_grad()
    def step(self) -> None:
        """Update all parameters."""
        self.steps += 1
        for parameter, first, second in zip(self.parameters, self.means, self.squares, strict=True):
            first.lerp_(parameter.grad, 0.1)
            second.mul_(0.999).addcmul_(parameter.grad, parameter.grad, value=0.001)
            scale = (second / (1 - 0.999**self.steps)).sqrt_().add_(1e-8)
            parameter.addcdiv_(first / (1 - 0.9**self.steps), scale, value=-self.lr)
            dist.broadcast(parameter.data, src=0)
