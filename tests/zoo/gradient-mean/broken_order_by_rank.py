"""Ranks reduce the gradients of layers in different orders: each is averaged with that of another layer."""
# expects: gradient-mean
# also: params-in-sync

import torch
import torch.distributed as dist
from torch import nn

NAMES = ("query", "key", "value", "output")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({name: nn.Linear(6, 6) for name in NAMES})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for name in NAMES:
            x = torch.tanh(self.layers[name](x))
        return x


def main() -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = Block()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    names = sorted(NAMES, reverse=rank % 2 == 1)  # as the order of a set may be on each rank
    own = torch.Generator().manual_seed(rank)
    for _ in range(8):
        x = torch.randn(8, 6, generator=own)
        optimizer.zero_grad()
        (model(x) - x).square().mean().backward()
        for name in names:
            for parameter in model.layers[name].parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= world_size
        optimizer.step()


dist.init_process_group("gloo")
main()
dist.destroy_process_group()
