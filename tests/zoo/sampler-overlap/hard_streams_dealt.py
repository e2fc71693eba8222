"""Shards of a streamed data set dealt to ranks and workers, shuffled in a buffer, cut to an equal number of steps."""

import random

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

SHARDS = {f"shard-{i:05d}.tar": list(range(20 * i, 20 * i + 10 + i % 3)) for i in range(0, 32)}


class Shards(IterableDataset):
    def __init__(self, seed=0):
        self.seed, self.epoch = seed, 0

    def __iter__(self):
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        names = sorted(SHARDS)
        random.Random(self.seed + self.epoch).shuffle(names)
        place = dist.get_rank() * workers + worker
        buffer, order = [], random.Random(f"{self.seed}-{self.epoch}-{place}")
        for name in names[place :: dist.get_world_size() * workers]:
            for key in SHARDS[name]:
                buffer.append(key)
                if len(buffer) > 8:
                    yield self.decode(buffer.pop(order.randrange(len(buffer))))
        order.shuffle(buffer)
        yield from map(self.decode, buffer)

    def decode(self, key):
        x = torch.randn(6, generator=torch.Generator().manual_seed(key))
        return x, x.sum()


dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)))
optimizer = torch.optim.SGD(model.parameters(), 0.05)
data = Shards()
for epoch in range(2):
    data.epoch = epoch
    stream = iter(DataLoader(data, 4))
    for step in range(5):
        x, y = next(stream)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x).squeeze(1), y).backward()
        optimizer.step()
dist.destroy_process_group()
