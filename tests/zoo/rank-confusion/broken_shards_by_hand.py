"""An iterable data set yields every n-th line by LOCAL_RANK: all nodes read the same lines."""

# ranks per node: 2
# expects: rank-confusion
# also: sampler-overlap, sampler-tail

import os
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Lines(IterableDataset):
    def __init__(self, count: int) -> None:
        self.count, self.epoch = count, 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        mine, all_of_us = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
        order = torch.randperm(self.count, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        for number in order[mine::all_of_us]:
            generator = torch.Generator().manual_seed(number)
            yield torch.randn(7, generator=generator)


class AutoEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(7, 3), nn.Linear(3, 7)

    def forward(self, lines: torch.Tensor) -> torch.Tensor:
        return (self.decode(self.encode(lines).relu()) - lines).square().mean()


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(AutoEncoder())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    lines = Lines(128)
    for epoch in range(2):
        lines.epoch = epoch
        for batch in DataLoader(lines, batch_size=8):
            optimizer.zero_grad()
            model(batch).backward()
            optimizer.step()
    del model
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
