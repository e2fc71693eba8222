"""Each rank has as many channels of its own, with decays that begin alike, so that one rank alone has a narrower model."""

import torch
import torch.distributed as dist
from torch import nn


class Entry(torch.autograd.Function):
    """The input of a layer that is divided by its channels."""

    @staticmethod
    def forward(context, x):
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient


class Exit(torch.autograd.Function):
    """The sum of what all ranks compute from their channels."""

    @staticmethod
    def forward(context, x):
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(context, gradient):
        return gradient


class Memory(nn.Module):
    """Channels that forget at rates of their own."""

    def __init__(self, width: int, channels: int, rates: int) -> None:
        super().__init__()
        draws = torch.Generator().manual_seed(20 + dist.get_rank())
        self.write = nn.Parameter(torch.randn(channels, width, generator=draws) / width**0.5)
        self.decay = nn.Parameter(torch.linspace(0.5, 2.0, rates).repeat(channels, 1))
        self.read = nn.Parameter(torch.randn(width, channels, generator=draws) / channels**0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        written = torch.tanh(Entry.apply(x) @ self.write.T)
        kept, seen = torch.zeros(1), []
        for moment in range(x.shape[1]):
            kept = torch.exp(-self.decay) * kept + written[:, moment, :, None]
            seen.append(kept.mean(-1))
        return Exit.apply(torch.stack(seen, 1) @ self.read.T)


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    first, memory, last = nn.Linear(3, 8), Memory(8, 6, 4), nn.Linear(8, 1)
    weights = [*first.parameters(), *memory.parameters(), *last.parameters()]
    optimizer = torch.optim.SGD(weights, lr=0.1)
    samples = torch.Generator().manual_seed(9)  # the same on all ranks
    for step in range(24):
        series = torch.randn(16, 6, 3, generator=samples)
        loss = (last(memory(first(series))) - series.cumsum(1)[..., :1]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 8 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
