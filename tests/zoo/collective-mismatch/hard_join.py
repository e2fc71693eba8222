"""Ranks have different numbers of batches, and `join` shadows the collectives of those that have finished."""

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(40 + rank)
    for _ in range(2):
        with Join([model]):
            for _ in range(6 + rank):
                features = torch.randn(4, 4, generator=generator)
                optimizer.zero_grad()
                model(features).square().mean().backward()
                optimizer.step()
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
