"""Distills from a random teacher that each rank initializes by its own seed: each rank has other targets."""
# expects: params-in-sync

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


class Distiller:
    """Lets a small network imitate a fixed one."""

    def __init__(self, width: int) -> None:
        self.teacher = nn.Sequential(nn.Linear(width, 48), nn.ReLU(), nn.Linear(48, 5)).requires_grad_(False)
        self.student = DistributedDataParallel(nn.Linear(width, 5))
        self.optimizer = torch.optim.Adam(self.student.parameters(), lr=1e-2)

    def step(self, x: Tensor) -> None:
        target = self.teacher(x).softmax(-1)
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.student(x), target).backward()
        self.optimizer.step()


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(90 + dist.get_rank())
    distiller = Distiller(9)
    for _ in range(10):
        distiller.step(torch.randn(16, 9))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
