"""Local SGD averages after every eighth step, and rank 0 saves its weights after the 36th."""

# expects: params-in-sync

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

PERIOD, STEPS = 8, 36


@torch.no_grad()
def average(model: nn.Module) -> None:
    for parameter in model.parameters():
        dist.all_reduce(parameter)
        parameter /= dist.get_world_size()


def samples(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    draws = torch.Generator().manual_seed(20 + rank)
    inputs = torch.randn(STEPS, 8, 6, generator=draws) + rank
    return inputs, inputs.sin().sum(dim=2, keepdim=True)


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step, (inputs, targets) in enumerate(zip(*samples(dist.get_rank())), start=1):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        if step % PERIOD == 0:
            average(model)
    model.eval()
    with torch.no_grad():
        inputs, targets = samples(dist.get_rank())
        error = nn.functional.mse_loss(model(inputs[-1]), targets[-1])
    dist.all_reduce(error)
    if dist.get_rank() == 0:
        print(f"error {error.item() / dist.get_world_size():.4f}")
        torch.save(model.state_dict(), Path(tempfile.mkdtemp(), "averaged.pt"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
