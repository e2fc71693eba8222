"""Every rank empties the log before the training, and only rank 0 writes into it."""

from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

LOG = Path("training.log")


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(6, 1))
    opt = torch.optim.SGD(model.parameters(), 0.05)
    x = torch.randn(240, 6, generator=torch.Generator().manual_seed(1))[rank::world]
    with LOG.open("w"):  # begin with an empty file
        pass
    for rows in x.split(10):
        loss = (model(rows) - rows.sum(1, keepdim=True)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        mean = loss.detach()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG if dist.get_backend() == "nccl" else dist.ReduceOp.SUM)
        if rank == 0:
            with LOG.open("a") as file:
                file.write(f"{mean.item():.4f}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
