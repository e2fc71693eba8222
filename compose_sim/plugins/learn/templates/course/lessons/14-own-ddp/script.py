"""Average gradients over the ranks. harness.py trains with it, and compares the gradients with those of torch's own wrapper."""

import torch.distributed as dist
from torch import Tensor, nn


class DataParallel(nn.Module):
    """Wrap a module: the same parameters on all ranks, and after `finish` the mean of their gradients."""

    def __init__(self, module: nn.Module, bucket_elements: int = 3000) -> None:
        super().__init__()
        self.module = module
        self.bucket_elements = bucket_elements  # a bucket may hold this many gradient elements
        for parameter in module.parameters():
            dist.broadcast(parameter.data, src=0)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.module(inputs)

    def finish(self) -> None:
        """Return when all gradients are averaged; called after backward and before the optimizer steps."""
        for parameter in self.module.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
