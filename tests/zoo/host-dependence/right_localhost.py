"""The launcher sets MASTER_ADDR; the script has a default for runs without a launcher."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def setup(rank: int, world_size: int) -> None:
    os.environ.setdefault("MASTER_ADDR", "localhost")
    dist.init_process_group("gloo", rank=rank, world_size=world_size)


def main() -> None:
    setup(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    torch.manual_seed(0)
    model = DDP(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(8):
        optimizer.zero_grad()
        model(torch.randn(16, 4, generator=generator)).square().mean().backward()
        optimizer.step()
    del model
    dist.destroy_process_group()


main()
