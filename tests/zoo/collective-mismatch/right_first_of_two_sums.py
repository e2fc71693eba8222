"""A part of a small tensor is reduced in place, and the tensor is freed before the next collective."""

import torch
import torch.distributed as dist
from torch import nn


def clip(parameters: list[nn.Parameter], limit: float) -> None:
    """Clip by the norm of all parameters; what a rank holds alone is added up over the ranks."""
    squares = torch.zeros(2)
    for each in parameters:
        squares[0 if each.dim() > 1 else 1] += each.grad.square().sum()
    dist.all_reduce(squares[:1])
    factor = (limit / (squares.sum().sqrt() + 1e-6)).clamp(max=1.0)
    for each in parameters:
        each.grad *= factor


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    draws = torch.Generator().manual_seed(10 + dist.get_rank())
    for step in range(20):
        inputs = torch.randn(16, 8, generator=draws)
        loss = (model(inputs).flatten() - inputs[:, 0]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for each in model.parameters():
            dist.all_reduce(each.grad)
            each.grad /= dist.get_world_size()
        clip(list(model.parameters()), 1.0)
        optimizer.step()
        if dist.get_rank() == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
