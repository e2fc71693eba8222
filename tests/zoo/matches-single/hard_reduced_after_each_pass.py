"""Each pass of a step is reduced at once, into the rank's slice of all gradients, and the rank keeps only the sum of its slice."""

import torch
import torch.distributed as dist
from torch import nn

PASSES = 2


class SlicedAdam:
    """Weights and gradients are slices of two long tensors, of which each rank updates its own part."""

    def __init__(self, model: nn.Module, lr: float) -> None:
        parameters, world = list(model.parameters()), dist.get_world_size()
        count = sum(each.numel() for each in parameters)
        self.weights, self.lr, self.steps = torch.zeros(-(-count // world) * world), lr, 0
        self.gradients, start = torch.zeros_like(self.weights), 0
        for each in parameters:
            part = slice(start, start + each.numel())
            self.weights[part] = each.data.flatten()
            each.data = self.weights[part].view_as(each)
            each.grad = self.gradients[part].view_as(each)
            start = part.stop
        dist.broadcast(self.weights, src=0)
        size = len(self.weights) // world
        self.own = self.weights[dist.get_rank() * size :][:size].clone()
        self.total, self.mean, self.square = (torch.zeros(size) for _ in range(3))

    def reduce(self) -> None:
        part = torch.empty_like(self.total)
        dist.reduce_scatter_tensor(part, self.gradients)
        self.total += part
        self.gradients.zero_()

    @torch.no_grad()
    def step(self, samples: torch.Tensor) -> None:
        gradient, self.steps = self.total / samples, self.steps + 1
        self.mean.lerp_(gradient, 0.1)
        self.square.lerp_(gradient**2, 0.05)
        size = (self.square / (1 - 0.95**self.steps)).sqrt() + 1e-8
        self.own -= self.lr * self.mean / (1 - 0.9**self.steps) / size
        dist.all_gather_into_tensor(self.weights, self.own)
        self.total.zero_()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.LayerNorm(24), nn.Linear(24, 2))
    optimizer = SlicedAdam(model, lr=4e-3)
    draws = torch.Generator().manual_seed(100 + rank)
    for step in range(30):
        losses, samples = torch.zeros(()), torch.zeros(())
        for _ in range(PASSES):
            size = 12 - int(torch.randint(0, 4, (1,), generator=draws))
            values = torch.randn(size, 6, generator=draws)
            loss = (model(values) - values[:, :2].sin()).square().sum()
            loss.backward()
            optimizer.reduce()
            losses, samples = losses + loss.detach(), samples + size
        both = torch.stack([losses, samples])
        dist.all_reduce(both)
        optimizer.step(both[1])
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {both[0] / both[1]:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
