"""Wrong: one bucket, complete when backward is over."""

import torch
import torch.distributed as dist
from torch import Tensor, nn


class DataParallel(nn.Module):
    """Wrap a module: the same parameters on all ranks, and after `finish` the mean of their gradients."""

    def __init__(self, module: nn.Module, bucket_elements: int = 3000) -> None:
        super().__init__()
        self.module = module
        for parameter in module.parameters():
            dist.broadcast(parameter.data, src=0)
        self.buckets: list[list[nn.Parameter]] = [[]]
        for parameter in reversed([*module.parameters()]):  # about the order in which gradients become ready
            if sum(each.numel() for each in self.buckets[-1]) + parameter.numel() > 10**9 and self.buckets[-1]:
                self.buckets.append([])
            self.buckets[-1].append(parameter)
            parameter.register_post_accumulate_grad_hook(self._make_hook(len(self.buckets) - 1))
        self.missing = [len(bucket) for bucket in self.buckets]  # gradients that are not there yet
        self.running: list[tuple[dist.Work, Tensor, list[nn.Parameter]]] = []

    def forward(self, inputs: Tensor) -> Tensor:
        return self.module(inputs)

    def _make_hook(self, number: int):
        def hook(_: Tensor) -> None:
            self.missing[number] -= 1
            if not self.missing[number]:
                bucket = self.buckets[number]
                flat = torch.cat([parameter.grad.flatten() for parameter in bucket])
                self.running.append((dist.all_reduce(flat, async_op=True), flat, bucket))

        return hook

    def finish(self) -> None:
        """Return when all gradients are averaged; called after backward and before the optimizer steps."""
        for work, flat, bucket in self.running:
            work.wait()
            flat /= dist.get_world_size()
            for parameter, piece in zip(bucket, flat.split([each.numel() for each in bucket]), strict=True):
                parameter.grad.copy_(piece.view_as(parameter))
        self.running.clear()
        self.missing = [len(bucket) for bucket in self.buckets]
