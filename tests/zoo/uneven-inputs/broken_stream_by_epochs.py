"""Each rank filters a stream independently: rank 3 finds fewer records, and its epochs end earlier."""

# expects: uneven-inputs
# also: hang, collective-mismatch, teardown

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset


class Readings(IterableDataset):
    def __init__(self, rank: int, world_size: int, wanted: int) -> None:
        self.numbers, self.wanted = range(rank, wanted, world_size), wanted

    def __iter__(self) -> Iterator[Tensor]:
        for number in self.numbers:
            reading = torch.randn(4, generator=torch.Generator().manual_seed(number))
            if number % 4 != 3 or number < 3 * self.wanted // 4:  # the last readings of one station are invalid
                yield reading


class Loop:
    def __init__(self, epochs: int) -> None:
        torch.manual_seed(71)
        self.epochs = epochs
        self.model = DistributedDataParallel(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def run(self, loader: DataLoader) -> None:
        for _ in range(self.epochs):
            for batch in loader:
                self.step(batch)
            dist.barrier()

    def step(self, batch: Tensor) -> None:
        self.optimizer.zero_grad()
        nn.functional.mse_loss(self.model(batch[:, :3]), batch[:, 3:]).backward()
        self.optimizer.step()


dist.init_process_group("gloo")
Loop(epochs=2).run(DataLoader(Readings(dist.get_rank(), dist.get_world_size(), 128), batch_size=4))
dist.destroy_process_group()
