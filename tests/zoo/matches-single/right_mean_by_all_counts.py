"""A running mean of the teacher's outputs is their sum over all ranks, divided by the number of samples of all of them."""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCH, STEPS = 16, 24


def views(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Two noisy views of this rank's share of the points of a step."""
    rank, world = dist.get_rank(), dist.get_world_size()
    draws = torch.Generator().manual_seed(step)
    points = torch.randn(BATCH * world, 10, generator=draws)
    first, second = (points + 0.1 * torch.randn(points.shape, generator=draws) for _ in range(2))
    own = slice(rank * BATCH, (rank + 1) * BATCH)
    return first[own], second[own]


class Targets:
    """What a teacher makes of a view, less the running mean over the samples of all ranks."""

    def __init__(self, width: int) -> None:
        self.mean = torch.zeros(width)

    def __call__(self, outputs: torch.Tensor) -> torch.Tensor:
        targets = torch.softmax((outputs - self.mean) / 0.1, dim=1)
        total = outputs.sum(dim=0)
        dist.all_reduce(total)
        count = len(outputs) * dist.get_world_size()
        self.mean = 0.8 * self.mean + 0.2 * total / count
        return targets


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    student = nn.Sequential(nn.Linear(10, 32), nn.GELU(), nn.Linear(32, 8))
    teacher = copy.deepcopy(student).requires_grad_(False)
    student = DistributedDataParallel(student)
    optimizer = torch.optim.AdamW(student.parameters(), lr=3e-3)
    targets = Targets(8)
    for step in range(STEPS):
        first, second = views(step)
        loss = -(targets(teacher(first)) * torch.log_softmax(student(second) / 0.2, dim=1)).sum(dim=1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for average, new in zip(teacher.parameters(), student.module.parameters()):
                average.lerp_(new, 0.05)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
