"""Reduces gradients in flat buckets, and forgets the last one, which is not full: the first layers are never reduced."""
# expects: gradient-mean
# also: params-in-sync

import torch
import torch.distributed as dist
from torch import Tensor, nn


class Buckets:
    """Reduces the gradients of the last layers first, several together."""

    def __init__(self, network: nn.Module, size: int) -> None:
        self.parameters, self.size = [*network.parameters()][::-1], size
        for each in self.parameters:
            dist.broadcast(each.data, 0)

    def reduce(self) -> None:
        bucket: list[Tensor] = []
        for each in self.parameters:
            bucket.append(each.grad)
            if sum(map(Tensor.numel, bucket)) >= self.size:
                self._reduce(bucket)
                bucket = []

    @staticmethod
    def _reduce(bucket: list[Tensor]) -> None:
        flat = torch.cat([each.flatten() for each in bucket])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for each, reduced in zip(bucket, flat.split([each.numel() for each in bucket]), strict=True):
            each.copy_(reduced.view_as(each))


dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
network = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 4))
buckets = Buckets(network, size=150)
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
for _ in range(10):
    x = torch.randn(16, 5)
    optimizer.zero_grad()
    nn.functional.cross_entropy(network(x), x[:, :4].argmax(1)).backward()
    buckets.reduce()
    optimizer.step()
dist.destroy_process_group()
