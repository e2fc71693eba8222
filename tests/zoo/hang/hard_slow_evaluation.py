"""Rank 0 evaluates alone for a long time while the others wait at a barrier: slow, not stuck."""

# options: --hang-timeout 4s

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def evaluate(model: torch.nn.Module, seconds: float) -> float:
    """Compute for this many seconds of CPU time, as an evaluation would."""
    until, total = time.monotonic() + seconds, 0.0
    with torch.no_grad():
        while time.monotonic() < until:
            total += sum(number % 7 for number in range(1000))
        return total * 0 + float(model(torch.ones(1, 8)).sum())


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    generator = torch.Generator().manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        loss = model(torch.randn(4, 8, generator=generator)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if rank == 0:
        evaluate(model.module, 9.0)
    dist.barrier()
    dist.destroy_process_group()


main()
