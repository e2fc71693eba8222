"""Shards of unequal length, but a fixed number of steps: a rank that reaches the end of its shard starts it again."""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset


def endless(loader: DataLoader) -> Iterator[list[torch.Tensor]]:
    while True:
        yield from loader


def main(steps: int = 20) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    generator = torch.Generator().manual_seed(500 + rank)
    count = 24 + 8 * rank
    shard = TensorDataset(torch.randn(count, 5, generator=generator), torch.randn(count, 1, generator=generator))
    batches = endless(DataLoader(shard, batch_size=4, shuffle=True, generator=generator))
    torch.manual_seed(3)
    model = DDP(nn.Sequential(nn.Linear(5, 5), nn.Hardtanh(), nn.Linear(5, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
    for _ in range(steps):
        x, y = next(batches)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
