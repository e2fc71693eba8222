"""Ranks have unequally many records, and join() in each epoch; the moments of Adam are then those of each rank."""

# expects: params-in-sync

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


class Station:
    """The measurements of one rank; some ranks have more than others."""

    def __init__(self, rank: int) -> None:
        generator = torch.Generator().manual_seed(700 + rank)
        self.rows = torch.randn(48 - 8 * (rank % 3), 7, generator=generator)

    def batches(self, size: int = 8) -> tuple[Tensor, ...]:
        return self.rows.split(size)


def main(epochs: int = 3) -> None:
    dist.init_process_group("gloo")
    station = Station(dist.get_rank())
    torch.manual_seed(12)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 10), nn.SiLU(), nn.Linear(10, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(epochs):
        with model.join():
            for rows in station.batches():
                loss = nn.functional.huber_loss(model(rows[:, :6]), rows[:, 6:])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
