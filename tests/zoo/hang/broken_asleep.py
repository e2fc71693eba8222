"""Rank 2 polls for a file that nobody writes, and sleeps in between; the others wait in backward for torch's 30 minutes."""

# expects: hang
# options: --hang-timeout 4s

import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def wait_for_signal(path: Path) -> None:
    while not path.exists():
        time.sleep(0.1)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(100 + rank)
    for step in range(8):
        if step == 4 and rank == 2:
            wait_for_signal(Path("/nonexistent/go"))
        inputs = torch.randn(4, 8, generator=generator)
        loss = torch.nn.functional.mse_loss(model(inputs), inputs.sum(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


main()
