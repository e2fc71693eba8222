"""A stream of records is divided among the ranks, but each of the loader's workers reads all of a rank's share."""

# expects: sampler-overlap

import random

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

RECORDS, BUFFER = 240, 16


class Stream(IterableDataset):
    """Records in an order that a buffer shuffles a little."""

    def __init__(self, rank, world):
        self.rank, self.world = rank, world

    def share(self):
        return self.rank, self.world

    def __iter__(self):
        first, step = self.share()
        draw = random.Random(torch.initial_seed())
        held = []
        for number in range(first, RECORDS, step):
            held.append(torch.randn(6, generator=torch.Generator().manual_seed(number)))
            if len(held) > BUFFER:
                yield held.pop(draw.randrange(len(held)))
        yield from held


def noisy(records):
    batch = torch.stack(records)
    return batch + 0.01 * torch.randn(batch.shape), batch.sum(1, keepdim=True)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    loader = DataLoader(
        Stream(dist.get_rank(), dist.get_world_size()), batch_size=6, num_workers=2, collate_fn=noisy, drop_last=True
    )
    model = DistributedDataParallel(nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for inputs, targets in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
