"""A divided layer gets its input as it is, so each rank passes on only the gradient of its part to the layers before."""

# expects: replicated-tensors
# also: matches-single

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional


class Exit(torch.autograd.Function):
    """The sum of what all ranks compute with their parts."""

    @staticmethod
    def forward(context, x):
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(context, gradient):
        return gradient


class Divided(nn.Module):
    """Two layers, of which each rank has a part of the width between them."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        rank, world = dist.get_rank(), dist.get_world_size()
        draws = torch.Generator().manual_seed(3)
        first = torch.randn(inner, width, generator=draws) / width**0.5
        last = torch.randn(width, inner, generator=draws) / inner**0.5
        self.first = nn.Parameter(first.chunk(world, dim=0)[rank].clone())
        self.last = nn.Parameter(last.chunk(world, dim=1)[rank].clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = functional.gelu(functional.linear(x, self.first))
        return Exit.apply(functional.linear(hidden, self.last))


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), Divided(24, 48), nn.LayerNorm(24), nn.Linear(24, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    samples = torch.Generator().manual_seed(8)  # the same on all ranks
    for step in range(30):
        inputs = torch.randn(32, 12, generator=samples)
        loss = functional.cross_entropy(model(inputs), inputs[:, :3].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
