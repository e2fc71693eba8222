"""Rank 0 alone averages a loss, in a loop without a DataLoader: gloo ends the process when sizes differ."""

# expects: collective-mismatch
# also: hang, params-in-sync

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(7 + rank)
    model = DistributedDataParallel(nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(10):
        optimizer.zero_grad()
        loss = model(torch.randn(16, 8)).square().mean()
        loss.backward()
        optimizer.step()
        if rank == 0 and step == 5:
            dist.all_reduce(loss.detach().clone())
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
