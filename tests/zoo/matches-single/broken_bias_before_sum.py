"""Adds the bias of a split layer on every rank before the sum over ranks: it counts once per rank."""
# expects: matches-single

import torch
import torch.distributed as dist
from torch import Tensor, nn


class CopyToAll(torch.autograd.Function):
    """Give each rank the input; its gradient is the sum over what the ranks make of it."""

    @staticmethod
    def forward(_: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(_: object, gradient: Tensor) -> Tensor:
        total = gradient.clone()
        dist.all_reduce(total)
        return total


class SumOverAll(torch.autograd.Function):
    """Add up what the ranks have computed; each of them gets the whole gradient."""

    @staticmethod
    def forward(_: object, x: Tensor) -> Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(_: object, gradient: Tensor) -> Tensor:
        return gradient


class SplitBlock(nn.Module):
    """Two layers, of which each rank has some of the inner features."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        rank, size = dist.get_rank(), dist.get_world_size()
        self.up = nn.Parameter((torch.randn(inner, width) * width**-0.5).chunk(size)[rank].clone())
        self.shift = nn.Parameter(torch.zeros(inner).chunk(size)[rank].clone())
        self.down = nn.Parameter((torch.randn(width, inner) * inner**-0.5).chunk(size, 1)[rank].clone())
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        hidden = nn.functional.gelu(nn.functional.linear(CopyToAll.apply(x), self.up, self.shift))
        return SumOverAll.apply(nn.functional.linear(hidden, self.down, self.bias))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.block, self.head = nn.Linear(6, 16), SplitBlock(16, 32), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        return self.head(h + self.block(h))


dist.init_process_group("gloo")
torch.manual_seed(21)  # all ranks make the whole matrices, and keep their parts
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
source = torch.Generator().manual_seed(22)
for _ in range(8):
    x = torch.randn(24, 6, generator=source)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), x[:, :3].argmax(1)).backward()
    optimizer.step()
dist.destroy_process_group()
