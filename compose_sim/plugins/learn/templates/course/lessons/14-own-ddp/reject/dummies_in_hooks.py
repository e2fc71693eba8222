"""Wrong: one element travels during backward, the rest afterwards."""

import torch
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
        last = [*module.parameters()][-1]
        last.register_post_accumulate_grad_hook(lambda _: dist.all_reduce(torch.zeros(1), async_op=True))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.module(inputs)

    def finish(self) -> None:
        """Return when all gradients are averaged; called after backward and before the optimizer steps."""
        flat = torch.cat([parameter.grad.flatten() for parameter in self.module.parameters()])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        sizes = [each.numel() for each in self.module.parameters()]
        for parameter, piece in zip(self.module.parameters(), flat.split(sizes), strict=True):
            parameter.grad.copy_(piece.view_as(parameter))
