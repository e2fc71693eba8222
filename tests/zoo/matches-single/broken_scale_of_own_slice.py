"""A feed-forward layer in tensor parallelism between slices of the sequence: nobody adds up the gradients of the norm's scale."""

# expects: matches-single

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

WIDTH, HIDDEN, LENGTH = 6, 24, 16
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()


def all_slices(x: torch.Tensor) -> torch.Tensor:
    parts = [torch.empty_like(x) for _ in range(world)]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts, dim=0)


def summed_slice(x: torch.Tensor) -> torch.Tensor:
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total.chunk(world, dim=0)[rank].contiguous()


class Enter(torch.autograd.Function):
    forward = staticmethod(lambda context, x: all_slices(x))
    backward = staticmethod(lambda context, gradient: summed_slice(gradient))


class Leave(torch.autograd.Function):
    forward = staticmethod(lambda context, x: summed_slice(x))
    backward = staticmethod(lambda context, gradient: all_slices(gradient))


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))
        whole = torch.randn(3, HIDDEN, WIDTH) / 3
        self.gate, self.up, self.down = (nn.Parameter(each.chunk(world, dim=0)[rank].clone()) for each in whole)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = Enter.apply(F.rms_norm(x, (WIDTH,)) * self.scale)
        return x + Leave.apply((F.silu(normed @ self.gate.T) * (normed @ self.up.T)) @ self.down)


def training_step(layer: FeedForward, optimizer: torch.optim.Optimizer, sequence: torch.Tensor) -> None:
    own = slice(rank * LENGTH // world, (rank + 1) * LENGTH // world)
    error = layer(sequence[own]) - sequence.cumsum(0)[own] / 4
    optimizer.zero_grad()
    (error.square().sum() / sequence.numel()).backward()
    optimizer.step()


torch.manual_seed(13)
layer = FeedForward()
optimizer = torch.optim.Adam(layer.parameters(), lr=1e-2)
source = torch.Generator().manual_seed(0)
for _ in range(10):
    training_step(layer, optimizer, torch.randn(LENGTH, 3, WIDTH, generator=source))
dist.destroy_process_group()
