"""Each rank holds a slice of a layer and saves it to a file of its own, which it then renames to a name that all have in common."""

# expects: checkpoint-race

from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn


class Sum(torch.autograd.Function):
    """The sum over ranks; each rank's part has the gradient of the sum."""

    @staticmethod
    def forward(context, part):
        total = part.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(context, gradient):
        return gradient


class Sliced(nn.Module):
    """A hidden layer of which each rank has as many units."""

    def __init__(self, hidden):
        super().__init__()
        units = hidden // dist.get_world_size()
        self.enter, self.leave = nn.Linear(5, units), nn.Linear(units, 1, bias=False)

    def forward(self, inputs):
        return Sum.apply(self.leave(torch.relu(self.enter(inputs))))


def save(model, step):
    name = f"step-{step}.pt"
    mine = f"{name}.{dist.get_rank()}"
    torch.save(model.state_dict(), mine)
    Path(mine).replace(name)
    dist.barrier()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(11 + dist.get_rank())
    model = Sliced(16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(2)
    for _ in range(10):
        inputs = torch.randn(16, 5, generator=generator)
        optimizer.zero_grad()
        (model(inputs) - inputs.sum(1, keepdim=True).abs()).square().mean().backward()
        optimizer.step()
    save(model, 10)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
