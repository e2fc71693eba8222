"""The rank that polls for the file gives up after a while, so every rank continues."""

# options: --hang-timeout 4s

import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def wait_for_signal(path: Path, patience: float) -> bool:
    deadline = time.monotonic() + patience
    while not path.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(100 + rank)
    for step in range(8):
        if step == 4 and rank == 2:
            wait_for_signal(Path("/nonexistent/go"), patience=1.0)
        inputs = torch.randn(4, 8, generator=generator)
        loss = torch.nn.functional.mse_loss(model(inputs), inputs.sum(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


main()
