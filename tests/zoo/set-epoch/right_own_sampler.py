"""A custom sampler shuffles with the epoch that it gets through the wrapper around it."""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import BatchSampler, DataLoader, Sampler, TensorDataset


class Deck(Sampler[int]):
    def __init__(self, count: int, seed: int) -> None:
        self.count, self.seed, self.round = count, seed, 0

    def __len__(self) -> int:
        return self.count // dist.get_world_size()

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(self.count, generator=torch.Generator().manual_seed(self.seed + self.round))
        yield from order[dist.get_rank() :: dist.get_world_size()].tolist()


class Batches(BatchSampler):
    def set_epoch(self, epoch: int) -> None:
        self.sampler.round = epoch


def steps(loader: DataLoader, count: int) -> Iterator[list[torch.Tensor]]:
    """Yield `count` batches from an endless loader."""
    done, epoch = 0, 0
    while done < count:
        loader.batch_sampler.set_epoch(epoch)
        for batch in loader:
            yield batch
            done += 1
            if done == count:
                return
        epoch += 1


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(2)
    data = TensorDataset(torch.randn(160, 4), torch.randn(160, 1))
    loader = DataLoader(data, batch_sampler=Batches(Deck(len(data), seed=5), batch_size=5, drop_last=False))
    model = DDP(torch.compile(nn.Sequential(nn.Linear(4, 8), nn.Sigmoid(), nn.Linear(8, 1)), backend="eager"))
    optimizer = torch.optim.NAdam(model.parameters())
    for x, y in steps(loader, 24):
        optimizer.zero_grad()
        nn.functional.l1_loss(model(x), y).backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
